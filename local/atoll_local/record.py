"""What a cluster was started with, as it lies in its folder: whoever takes it down reads it there."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from atoll_local.errors import StateError
from atoll_local.network import Network
from atoll_local.nodes import Node
from atoll_local.paths import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One cluster's parts."""

    nodes: tuple[Node, ...]
    network: Network
    port: int
    """Of the API server."""
    images: dict[str, str] = field(default_factory=dict)
    """What each was made from."""

    @classmethod
    def read(cls, name: str) -> Record | None:
        """None where there is no cluster of this name. A name that is none raises `HostError`.

        Raises:
            StateError: there is one, and what it was started with cannot be told.
        """
        file = record(name)
        try:
            return _RECORD.validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except PermissionError as error:
            raise StateError(f"{file} cannot be read by this user: run it with sudo") from error
        except OSError as error:
            raise StateError(f"{file} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise StateError(
                f"{file} is not as `up` wrote it ({f'{place}: ' if place else ''}{first['msg']}): mend it, or restart "
                f"the machine, which ends the cluster, and remove {file.parent}"
            ) from error

    def write(self, name: str) -> None:
        record(name).write_bytes(_RECORD.dump_json(self))


_RECORD = TypeAdapter(Record)

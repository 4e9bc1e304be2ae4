"""The parameters of a running cluster, in a file in its folder, which `down` reads."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import TypeAdapter, ValidationError

from atoll_local.errors import StateError
from atoll_local.network import Network
from atoll_local.nodes import Node
from atoll_local.paths import record


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The parameters of one cluster."""

    nodes: tuple[Node, ...]
    network: Network
    port: int
    """Port of the API server."""
    images: dict[str, str] = field(default_factory=dict)
    """Key of the content from which each image was built."""

    @classmethod
    def read(cls, name: str) -> Record | None:
        """The record, or None if there is no such cluster. Raises `HostError` for an invalid name.

        Raises:
            StateError: the record cannot be read.
        """
        file = record(name)
        try:
            return _RECORD.validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise StateError(
                f"{file} cannot be read: {error}\nRun it with sudo or mend the file; or restart the machine, which "
                f"ends the cluster, and remove {file.parent}"
            ) from error

    def write(self, name: str) -> None:
        record(name).write_bytes(_RECORD.dump_json(self))


_RECORD = TypeAdapter(Record)

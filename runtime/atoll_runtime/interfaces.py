"""The four interfaces on which the protocol's driver runs: disk, bucket, network, arrays.

Production implements them with files, a bucket, TLS sockets, and numpy. The harness in `tests/sim` implements
them in simulated time and runs the same driver, service, journal and client on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from atoll_runtime.payloads import Cut, HostPart, Part, Regions, Skipped
    from atoll_runtime.protocol import messages
    from atoll_runtime.protocol.fragments import Fragment
    from atoll_runtime.protocol.messages import Header, Hello
    from atoll_runtime.syncer.state import Version
    from atoll_runtime.transport.messages import FetchHead, FetchRequest, PushReply, ShardHello
    from atoll_runtime.transport.wire import Down, Up

VOLUME_SHARE = 4
"""An event tape takes a quarter of its volume at most: the journal needs more."""


@dataclass(frozen=True)
class Volume:
    """What a file system has for this process, in bytes."""

    size: int
    """Used and free, without what is kept for root."""
    free: int

    def share(self, limit: int) -> int:
        """The most that an event tape of this limit takes of it."""
        return min(limit, self.size // VOLUME_SHARE)


class Disk(Protocol):
    """A shard's volume. Open files are numbers. Every method blocks and raises `OSError`."""

    def make(self, folder: Path) -> None:
        """Creates a folder and those above it."""

    def files(self, folder: Path, pattern: str) -> list[Path]:
        """Files whose names match, sorted by name."""

    def open(self, path: Path, *, new: bool = False) -> int:
        """Opens a file for appending; `new` creates it or empties it."""

    def lock(self, path: Path) -> int:
        """Takes a lock that ends with the process; raises `BlockingIOError` where another process holds it."""

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        """Appends; returns the number of bytes written, which may be fewer."""

    def size(self, file: int) -> int:
        """Bytes of an open file."""

    def truncate(self, file: int, size: int) -> None:
        """Cuts an open file off."""

    def sync(self, file: int) -> None:
        """Returns when the content of an open file is durable."""

    def sync_folder(self, folder: Path) -> None:
        """Returns when the names in a folder are durable."""

    def close(self, file: int) -> None:
        """Closes a file or gives a lock back."""

    def read(self, path: Path) -> AbstractContextManager[Any]:
        """The content of a file, to be sliced and searched like bytes."""

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file or folder; replaces a file of the new name."""

    def remove(self, path: Path) -> None:
        """Removes a file, or a folder with all that is in it; nothing if it is not there."""

    def volume(self, folder: Path) -> Volume:
        """Size and free bytes of the file system."""


class Bucket(Protocol):
    """Checkpoints of a run, as the syncer uses them. Every method blocks and raises `StoreError`."""

    @property
    def uri(self) -> str: ...
    def save_part(self, part: Part) -> bool: ...
    def read_part(self, step: int, shard: int, shards: int) -> Part: ...
    def complete(self, step: int, shards: int, meta: dict[str, Any]) -> None: ...
    def newest(self, *, own: Regions | None = None) -> tuple[Cut | None, list[Skipped]]: ...
    def prune(self, keep: int, saved: int, now: float) -> None: ...


class Network(Protocol):
    """A learner host's way to one shard; also that of a shard to shard 0. Failures raise `TransportError`."""

    @property
    def broken(self) -> int:
        """Connections that broke so far while a body was under way on them, which may have gone on over another."""

    def session(self, hello: Hello | ShardHello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """Opens a session and sends what `outgoing` gives; ends when the shard ends it. Close it with `aclose`."""

    async def push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """Sends a part; breaks off once it is not `wanted` any more. That may be asked in another thread."""

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        """Fetches this host's range of a fragment; `answered` is called when the answer begins."""

    def tune(self, streams: int, chunk: int) -> None:
        """Connections of one body, and bytes of its chunks, of transfers that begin from now on."""

    async def close(self) -> None:
        """Frees connections; calls in progress end with `TransportError`."""


class Arrays(Protocol):
    """What fragments and contributions contain. Both methods run on a worker thread."""

    def read(self, fragment: Fragment, header: Header, body: memoryview) -> HostPart:
        """A pushed body as it is merged, and what one read of it shows."""

    def merge(
        self,
        fragment: Fragment,
        step: int,
        members: Sequence[messages.Part],
        parts: Mapping[tuple[str, int], HostPart],
        old: Version,
    ) -> Version:
        """The next version of a fragment. Raises `MergeError`."""

    def close(self) -> None:
        """Ends threads. Blocks."""

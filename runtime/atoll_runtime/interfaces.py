"""The four interfaces on which the protocol's driver runs: disk, bucket, network, arrays.

Production implements them with files, a bucket, TLS sockets, and numpy. The harness in `tests/sim` implements
them in simulated time and runs the same driver, service, journal and client on them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
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


class Disk(Protocol):
    """A shard's volume. Open files are numbers. Every method blocks and raises `OSError`."""

    def make(self, folder: Path) -> None:
        """Creates a folder and those above it."""

    def files(self, folder: Path, pattern: str) -> list[Path]:
        """Files whose names match, sorted by name."""

    def open(self, path: Path, *, new: bool = False) -> int:
        """Opens a file for appending; `new` creates it or empties it."""

    def lock(self, path: Path) -> int:
        """Takes a lock that ends with the process. Raises `BlockingIOError` if another process holds it."""

    def write(self, file: int, parts: Sequence[memoryview]) -> int:
        """Appends. Returns the number of bytes written, which may be less than all."""

    def sync(self, file: int) -> None:
        """Returns when the content of an open file is durable."""

    def sync_folder(self, folder: Path) -> None:
        """Returns when the names in a folder are durable."""

    def close(self, file: int) -> None:
        """Closes a file or releases a lock."""

    def read(self, path: Path) -> AbstractContextManager[Any]:
        """The content of a file, which can be sliced and searched like bytes."""

    def rename(self, old: Path, new: Path) -> None:
        """Renames a file or folder. Replaces a file with the new name."""

    def remove(self, path: Path) -> None:
        """Removes a file, or a folder with its content. Does nothing if it does not exist."""

    def volume(self, folder: Path) -> int:
        """Bytes of the file system of a folder, used and free, without the space reserved for root."""


class Bucket(Protocol):
    """Checkpoints of a run, as the syncer uses them. Every method blocks and raises `StoreError`."""

    @property
    def uri(self) -> str: ...
    def ready(self) -> None: ...
    def save_part(self, part: Part) -> bool: ...
    def read_part(self, step: int, shard: int, shards: int) -> Part: ...
    def complete(self, step: int, shards: int, meta: dict[str, Any]) -> None: ...
    def newest(self, *, own: Regions | None = None) -> tuple[Cut | None, list[Skipped]]: ...
    def prune(self, keep: int, saved: int, now: float) -> None: ...


class Network(Protocol):
    """A learner host's way to one shard, or a shard's way to shard 0. Failures raise `TransportError`."""

    @property
    def broken(self) -> int:
        """How many connections broke during a transfer so far. The transfer may have continued over another one."""

    def session(self, hello: Hello | ShardHello, outgoing: AsyncIterator[Up]) -> AsyncIterator[Down]:
        """Opens a session and sends the messages of `outgoing`. Ends when the shard ends it. Close it with `aclose`."""

    async def push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """Sends a part. Breaks off when it is not `wanted` any more. `wanted` may be called in another thread."""

    async def fetch(
        self, request: FetchRequest, answered: Callable[[], None]
    ) -> tuple[FetchHead, memoryview]:
        """Fetches this host's range of a fragment. Calls `answered` when the answer begins."""

    def tune(self, streams: int, chunk: int) -> None:
        """Sets the connections of one body and the bytes of its chunks, for transfers that begin from now on."""

    async def close(self) -> None:
        """Frees connections. Calls in progress end with `TransportError`."""


class Arrays(Protocol):
    """The operations on the arrays of fragments and contributions. `read` and `merge` run on worker threads."""

    def read(self, fragment: Fragment, header: Header, body: memoryview) -> HostPart:
        """A pushed body in the form in which it is merged, and the result of scanning it once."""

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

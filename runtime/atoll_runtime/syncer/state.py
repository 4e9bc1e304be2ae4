"""What a shard has in memory: versions of its fragments, and contributions until their round is merged or over.

Versions are Θ and momentum, float32, and what the learners hold of Θ.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.payloads import HostPart
from atoll_runtime.protocol.effects import Release
from atoll_runtime.protocol.fragments import Array, Layout
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Part
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.transport import changes, codecs
from atoll_runtime.transport.changes import Change
from atoll_runtime.transport.chunks import Assembly
from atoll_runtime.transport.messages import WHOLE, FetchHead, FetchRequest
from atoll_runtime.transport.transport import Receive
from atoll_runtime.transport.wire import WireError

VERSION_BYTES = 12
"""Upper bound of the bytes of one element that a merge makes: Θ, momentum and the wire, with a margin."""
LEAST_BUDGET = 64 << 20
SHARE = 4
"""Contributions may take a quarter of the memory."""
ASKED_MERGES = 1024
"""Merges of the shard for which an encoding is made after a host fetched it last."""

if TYPE_CHECKING:
    from atoll_runtime.merge.rda import Result


@dataclass(frozen=True)
class Version:
    """One version of a fragment. The arrays are never written to: a merge makes new ones."""

    version: int
    theta: Array
    momentum: Array
    wire: memoryview
    """Θ in the dtype of the run's codec, without padding. With int4 as the run's codec, W."""
    held: memoryview | None = None
    """W: what the hosts that fetch changes hold; see `transport/changes.py`."""
    change: Change | None = None
    """Change from the version before, where it can be sent instead of W."""
    int8: memoryview | None = None
    """Θ in int8."""
    asked: dict[str, int] = field(default_factory=dict)
    """Narrower codecs in which hosts fetch, and for how many more merges each is made. All fragments of a shard
    share this object, so a host that has fetched one fragment in a codec finds the others in it too."""

    @classmethod
    def make(cls, version: int, theta: Array, momentum: Array, codec: str) -> Version:
        """Returns the first version of a series."""
        return cls(version, theta, momentum, codecs.encode(theta, codec, theta.size))

    @property
    def bare(self) -> Version:
        """Θ and momentum alone, for a cut: it may keep them long after newer versions."""
        return Version(self.version, self.theta, self.momentum, memoryview(b""))

    def next(self, version: int, merged: Result, codec: str, pool: Executor | None = None) -> Version:
        """Returns the version that a merge made from this one, with the encodings that hosts fetch. If the run's codec
        is int4, this overwrites `merged.wire` with W."""
        asked = [name for name, merges in list(self.asked.items()) if merges > 0]
        for name in asked:
            self.asked[name] -= 1
        held = change = int8 = None
        if codec == "int4" or "int4" in asked or "bf16" in asked:
            old = self.held
            if old is None:
                old = codecs.encode(self.theta, "bf16", self.theta.size) if codec == "float32" else self.wire
            held = merged.wire if codec == "int4" else memoryview(bytearray(len(old)))
            change = Change(self.version, changes.advance(old, merged.theta, held, pool))
        if "int8" in asked:
            int8 = changes.encoded(merged.theta, "int8", pool)
        return Version(version, merged.theta, merged.momentum, merged.wire, held, change, int8, self.asked)

    def body(self, start: int, stop: int, codec: str, run: str, held: int) -> tuple[str, int, memoryview]:
        """Returns elements [start, stop) of the padded fragment in the available encoding closest to `codec`: the codec
        of the body, the version that it changes or WHOLE, and bytes. The bytes may end where the fragment ends.

        Args:
            run: the run's codec.
            held: the version of this series that the host holds.
        """
        found, base, wire = codecs.whole(run), WHOLE, self.wire
        if codec != found:
            self.asked[codec] = ASKED_MERGES
        if codec == "int4" and self.change is not None and self.change.base == held:
            found, base, wire = codec, held, self.change.body
        elif codec in ("int8", "int4") and self.int8 is not None:
            found, wire = "int8", self.int8
        elif codec != found and self.held is not None:
            found, wire = "bf16", self.held
        return found, base, wire[codecs.size(start, found) : codecs.size(stop, found)]


class State:
    """The newest durable version of every fragment. Versions are never modified, so a tuple of them is a consistent
    cut. Used on the event loop only.

    Args:
        series: names this life of the shard. A change from one version to the next is valid only within it.
    """

    def __init__(self, layout: Layout, codec: str, fragments: Sequence[Version], series: str) -> None:
        self.layout, self.codec, self.series = layout, codec, series
        asked: dict[str, int] = {}
        self.fragments = [replace(version, asked=asked) for version in fragments]

    @classmethod
    def from_tensors(
        cls,
        layout: Layout,
        codec: str,
        theta: Mapping[str, NDArray[Any]],
        momentum: Mapping[str, NDArray[Any]] | None,
        versions: Sequence[int],
        series: str,
    ) -> State:
        """Builds the state from whole tensors. If `momentum` is None, it is zero."""
        fragments = []
        for fragment, version in zip(layout.fragments, versions, strict=True):
            flat = layout.flatten(theta, fragment.id)
            b = layout.flatten(momentum, fragment.id) if momentum else np.zeros_like(flat)
            fragments.append(Version.make(version, flat, b, codec))
        return cls(layout, codec, fragments, series)

    def fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """Returns a part of the newest version. The sender fills its bytes with zeros up to the size in the head."""
        p, start, stop = request.fragment, request.start, request.stop
        found = self.fragments[p]
        held = request.held if request.series == self.series else WHOLE
        codec, base, body = found.body(start, stop, request.codec, self.codec, held)
        size = codecs.size(stop - start, codec)
        return FetchHead(p, found.version, size, codec, base, self.series), body

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(fragment.version for fragment in self.fragments)


@dataclass
class Push:
    """A part whose bytes are reserved."""

    header: Header
    assembly: Assembly
    deadline: asyncio.Timeout | None = None
    """Deadline of its body, while it is awaited."""
    broken: bool = False
    """The connection broke. What has arrived is kept for the next push of the same part."""
    over: bool = False
    """Its round is over, or goes on without it."""

    def stop(self) -> None:
        """No longer awaits the body."""
        if self.deadline is not None and not self.deadline.expired():
            self.deadline.reschedule(0.0)


class Parts:
    """The parts that hosts pushed, by round, unit and host. Bytes are reserved before a body is read.

    Args:
        budget: bytes.
        width: bytes of an element as it is held.
        seconds: the longest that a body may take. Its sender waits no longer.
    """

    def __init__(self, budget: int, width: int, seconds: float = TRANSFER_SECONDS) -> None:
        self.budget, self.used = budget, 0
        self._width = width
        self._seconds = seconds
        self._pushes: dict[tuple[RoundId, str, int], Push] = {}
        """The newest push of each part."""
        self._parts: dict[tuple[RoundId, str, int], HostPart] = {}

    def reserve(self, header: Header) -> str:
        """Reserves a part's bytes and returns an empty text, or returns why there is no room for it now.

        A part has its bytes once. An earlier push of the same part ends, and this one continues with what has arrived
        if part and codec are the same.
        """
        size = self._room(header)
        if self._others(header) + size > self.budget:
            for push in [each for each in self._pushes.values() if each.over]:
                push.stop()
                self.unreserve(push.header)
        older, used = self._pushes.get(header.key), self._others(header)
        if used + size > self.budget:
            return f"{size} bytes do not fit: {used} of {self.budget} bytes are in use"
        assembly = None
        if older is not None:
            if (older.header.part, older.header.codec) == (header.part, header.codec):
                assembly = older.assembly
            older.stop()
        self.used = used + size
        self._pushes[header.key] = Push(header, assembly or Assembly(header.size))
        return ""

    async def receive(self, header: Header, receive: Receive) -> memoryview:
        """Returns the body of a push whose bytes are reserved.

        Raises:
            WireError: the body did not arrive whole.
            TimeoutError: it took too long, or its sender began the push again.
        """
        push = self._pushes[header.key]
        async with asyncio.timeout(self._seconds) as push.deadline:
            try:
                await receive(push.assembly)
            except WireError:
                push.broken = True
                raise
            finally:
                push.deadline = None
        return push.assembly.body

    def reserved(self, header: Header) -> bool:
        """Whether this push still has its bytes. Compares identity, because a later push may have an equal header."""
        push = self._pushes.get(header.key)
        return push is not None and push.header is header

    def unreserve(self, header: Header) -> None:
        """Frees the bytes of this push, if it still has them."""
        if self.reserved(header):
            del self._pushes[header.key]
            self.used -= self._room(header)

    def end(self, header: Header, wanted: bool) -> None:
        """Frees the bytes of this push, unless it is broken and wanted: then the next push of the part has them."""
        if self.reserved(header) and not (wanted and self._pushes[header.key].broken):
            self.unreserve(header)

    def hold(self, header: Header, held: HostPart) -> None:
        """Keeps a part whose bytes are reserved. It replaces an earlier one of the same host."""
        del self._pushes[header.key]
        if header.key in self._parts:
            self.used -= self._parts[header.key].body.nbytes
        self._parts[header.key] = held

    def release(self, release: Release) -> None:
        """Forgets the parts of a release, and its broken pushes. Others go on, because their senders measure the link
        by them, until another part needs their bytes."""
        for push in list(self._pushes.values()):
            if release.of(push.header.part.round, push.header.part.unit):
                push.over = True
                if push.broken:
                    self.unreserve(push.header)
        for key in [key for key in self._parts if release.of(key[0], key[1])]:
            self.used -= self._parts.pop(key).body.nbytes

    def _others(self, header: Header) -> int:
        """Bytes in use, without those of an earlier push of the same part."""
        older = self._pushes.get(header.key)
        return self.used - (0 if older is None else self._room(older.header))

    def _room(self, header: Header) -> int:
        """Returns the bytes that a part takes until it is merged, in the dtype of the run's codec."""
        return (header.part.stop - header.part.start) * self._width

    def take(self, members: Sequence[Part]) -> dict[tuple[str, int], HostPart]:
        """Returns the members' parts for a merge, by unit and host."""
        hosts = {(member.round, member.unit): member.hosts for member in members}
        # A unit may have sent more with another number of hosts.
        return {key[1:]: part for key, part in self._parts.items() if key[2] < hosts.get(key[:2], 0)}


def budget() -> int:
    """Returns the bytes for contributions: a share of the container's memory limit, else of the machine's memory."""
    sizes = []
    limits = "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"  # of cgroup v2, v1
    for path in (*limits, "/proc/meminfo"):
        words = Path(path).read_text().split() if Path(path).exists() else []
        if words and words[0].isdigit():
            sizes.append(int(words[0]))
        elif words and words[0] == "MemTotal:":
            sizes.append(int(words[1]) * 1024)
    return max(LEAST_BUDGET, min(sizes, default=0) // SHARE)

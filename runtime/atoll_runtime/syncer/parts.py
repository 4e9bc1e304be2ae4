"""Contributions in memory, within a byte budget, until their round is merged or over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from atoll_runtime.contract import Codec
from atoll_runtime.merge.gradients import Gradient, Part, Scan, scan
from atoll_runtime.sync.events import Member, RoundId
from atoll_runtime.sync.fragments import Fragment
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PushHead

LEAST_BUDGET = 64 << 20
SHARE = 4
"""A quarter of the memory may hold contributions."""


@dataclass(frozen=True)
class Held:
    """One host's part, as it is merged."""

    head: PushHead
    body: memoryview
    scan: Scan


class Parts:
    """What hosts pushed, by round, unit and host. Bytes are reserved before a body is read."""

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._reserved: dict[tuple[RoundId, str, int], PushHead] = {}
        """Of each part the push that is under way."""
        self._rounds: dict[RoundId, dict[tuple[str, int], Held]] = {}

    def reserve(self, head: PushHead) -> str:
        """Why a part cannot be held now; empty when it can, and its bytes are reserved.

        A host has them once for a part: an earlier push of the same part, which is under way, loses them.
        """
        older, size = self._reserved.get(head.part), room(head)
        used = self.used - (0 if older is None else room(older))
        if used + size > self.budget:
            return f"{size} bytes do not fit: {used} of {self.budget} bytes are in use"
        self.used = used + size
        self._reserved[head.part] = head
        return ""

    def reserved(self, head: PushHead) -> bool:
        """This push still has its bytes: the same object, for the one that took its place may be equal to it."""
        return self._reserved.get(head.part) is head

    def unreserve(self, head: PushHead) -> None:
        """Gives the bytes of this push back, if it still has them."""
        if self.reserved(head):
            del self._reserved[head.part]
            self.used -= room(head)

    def hold(self, held: Held) -> None:
        """Keeps a part whose bytes are reserved, in place of an earlier one of the same host."""
        del self._reserved[held.head.part]
        parts, key = self._rounds.setdefault(held.head.round, {}), (held.head.unit, held.head.host)
        if key in parts:
            self.used -= parts[key].body.nbytes
        parts[key] = held

    def release(self, round_id: RoundId, unit: str | None) -> None:
        """Forgets a unit's parts of a round, or all of them."""
        parts = self._rounds.get(round_id, {})
        for key in [key for key in parts if unit is None or key[0] == unit]:
            self.used -= parts.pop(key).body.nbytes
        if not parts:
            self._rounds.pop(round_id, None)

    def take(self, round_id: RoundId) -> dict[tuple[str, int], Held]:
        """A frozen round's parts, for the merge."""
        return dict(self._rounds.get(round_id, {}))


def room(head: PushHead) -> int:
    """Bytes that a part takes until it is merged: what is pushed in int4 is held as bfloat16."""
    return (head.stop - head.start) * codecs.DTYPES[head.codec].itemsize


def read(fragment: Fragment, head: PushHead, body: memoryview) -> tuple[memoryview, Scan]:
    """A pushed body as it is merged, and what is known of it."""
    codec = cast(Codec, head.codec)
    held = codecs.unpack(body, codec, head.stop - head.start)
    return held, scan(fragment, held, codec, head.start)


def gradients(members: Sequence[Member], parts: Mapping[tuple[str, int], Held]) -> list[Gradient]:
    """Each member's outer gradient, as its hosts' parts in their order."""
    return [
        Gradient(
            member.weight,
            tuple(
                Part(held.head.start, held.body, held.scan)
                for (unit, _), held in sorted(parts.items())
                if unit == member.unit
            ),
        )
        for member in members
    ]


def budget() -> int:
    """Bytes for contributions: a share of the container's memory, or of the machine's without a limit."""
    sizes = []
    for path in ("/sys/fs/cgroup/memory.max", "/proc/meminfo"):
        words = Path(path).read_text().split() if Path(path).exists() else []
        if words and words[0].isdigit():
            sizes.append(int(words[0]))
        elif words and words[0] == "MemTotal:":
            sizes.append(int(words[1]) * 1024)
    return max(LEAST_BUDGET, min(sizes, default=0) // SHARE)

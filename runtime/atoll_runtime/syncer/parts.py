"""Contributions in memory, within a byte budget, until their round is merged or over."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from atoll_runtime.sync.events import Member, RoundId
from atoll_runtime.sync.fragments import Fragment
from atoll_runtime.sync.merge import Input
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PushHead

LEAST_BUDGET = 64 << 20
SHARE = 4
"""A quarter of the memory may hold contributions."""


class Parts:
    """What hosts pushed, by round, unit and host. Bytes are reserved before a body is read."""

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._rounds: dict[RoundId, dict[tuple[str, int], tuple[PushHead, bytearray]]] = {}

    def reserve(self, size: int) -> str:
        """Why `size` bytes cannot be held now; empty when they can, and are reserved."""
        if self.used + size > self.budget:
            return f"{size} bytes do not fit: {self.used} of {self.budget} bytes are in use"
        self.used += size
        return ""

    def unreserve(self, size: int) -> None:
        self.used -= size

    def hold(self, head: PushHead, body: bytearray) -> None:
        """Keeps a part whose bytes are reserved."""
        self._rounds.setdefault(head.round, {})[head.unit, head.host] = head, body

    def release(self, round_id: RoundId, unit: str | None) -> None:
        """Forgets a unit's parts of a round, or all of them."""
        held = self._rounds.get(round_id, {})
        for key in [key for key in held if unit is None or key[0] == unit]:
            self.used -= held.pop(key)[0].size
        if not held:
            self._rounds.pop(round_id, None)

    def take(self, round_id: RoundId) -> dict[tuple[str, int], tuple[PushHead, bytearray]]:
        """A frozen round's parts, for the merge."""
        return dict(self._rounds.get(round_id, {}))


def inputs(
    fragment: Fragment,
    members: Sequence[Member],
    parts: dict[tuple[str, int], tuple[PushHead, bytearray]],
) -> list[Input]:
    """Each member's outer gradient, float32, put together from its hosts' parts."""
    result = []
    for member in members:
        delta = np.zeros(fragment.size, np.float32)
        for (unit, _), (head, body) in parts.items():
            if unit == member.unit:
                codecs.decode(body, head.codec, delta[head.start : head.stop])
        result.append(Input(member.weight, delta))
    return result


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

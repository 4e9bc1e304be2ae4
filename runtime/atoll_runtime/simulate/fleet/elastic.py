"""A learner that goes on with the slices it has, and stops only to take slices out or in."""

from __future__ import annotations

from collections import deque
from math import inf

from atoll_runtime.simulate.fleet.setting import Recovery
from atoll_runtime.simulate.fleet.timeline import Interruptions, Timeline


def elastic(slices: int, recovery: Recovery, interruptions: Interruptions, seconds: float) -> Timeline:
    """Slices leave and join in pauses; whatever happens before a pause ends is settled by that pause."""
    line = Timeline()
    mesh = _Mesh(slices, recovery, interruptions, line)
    now = 0.0
    while now < seconds:  # each round passes an interruption or a return, or reaches the end
        scale_down, scale_up = mesh.next_hit() + recovery.notice, mesh.next_join()
        start = min(scale_down, scale_up, seconds)
        line.step(now, start, mesh.members)
        mesh.advance(now, start)
        shrinks = mesh.lose(start)
        now = min(start + recovery.pause, seconds)
        line.idle["scale_down" if shrinks else "scale_up"] += mesh.members * (now - start)
        mesh.advance(start, now)
        mesh.lose(now)
        mesh.join()
    return line


class _Mesh:
    """The slices that a learner trains with, those that are away, and those that are back and wait to join."""

    def __init__(self, slices: int, recovery: Recovery, interruptions: Interruptions, line: Timeline) -> None:
        self.slices = self.members = slices
        self._standing = 0
        self._away: deque[float] = deque()
        """When each is back, ascending."""
        self._recovery, self._line = recovery, line
        self._coming = zip(interruptions.times, interruptions.marks, strict=True)
        self._pass()

    def _pass(self) -> None:
        self._at, self._mark = next(self._coming, (inf, 0.0))

    def next_hit(self) -> float:
        """When a member is interrupted next. What hits a slice that is away counts for nothing."""
        while self._mark * self.slices >= self.members and self._at < inf:
            self._pass()
        return self._at

    def next_join(self) -> float:
        """When the next slice to return will have waited for as long as its wait costs less than a pause."""
        if not self._away:
            return inf
        return self._away[0] + min(self._recovery.patience, self._recovery.pause * self.members)

    def advance(self, start: float, end: float) -> None:
        """Charges what the slices outside the mesh did, and moves those that are back."""
        self._line.idle["standby"] += self._standing * (end - start)
        for back in self._away:
            until = min(back, end)
            self._line.idle["repair"] += until - start
            self._line.idle["standby"] += end - until
        while self._away and self._away[0] <= end:
            self._away.popleft()
            self._standing += 1

    def lose(self, now: float) -> bool:
        """Takes out the members that were interrupted until now; whether there was any."""
        hit = False
        while self.next_hit() <= now:
            hit = True
            self._line.interruptions += 1
            self._away.append(max(self._at + self._recovery.repair, now))
            self.members -= 1
            self._pass()
        return hit

    def join(self) -> None:
        """Takes in all that wait."""
        self.members, self._standing = self.members + self._standing, 0

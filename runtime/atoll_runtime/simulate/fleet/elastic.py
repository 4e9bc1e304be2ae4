"""A learner that goes on with the slices it has, and stops only to take slices out or in."""

from __future__ import annotations

from math import inf

from atoll_runtime.simulate.fleet.setting import Recovery
from atoll_runtime.simulate.fleet.timeline import Interruptions, Pool, Timeline


def elastic(
    slices: int, spares: int, recovery: Recovery, interruptions: Interruptions, seconds: float
) -> Timeline:
    """Slices leave and join in pauses; whatever happens before a pause ends is settled by that pause.

    Spares replace what was lost, in the same pause. A slice that is back while none is missing becomes a spare.
    """
    line, pool = Timeline(), Pool(spares, recovery.seeding)
    mesh = _Mesh(slices, recovery, interruptions, pool, line)
    now = 0.0
    while now < seconds:  # each round passes an interruption or a return, or reaches the end
        scale_down, scale_up = mesh.next_hit() + recovery.notice, mesh.next_join()
        start = min(scale_down, scale_up, seconds)
        line.step(now, start, mesh.members)
        pool.advance(line, now, start)
        shrinks = mesh.lose(start)
        length = recovery.pause + (recovery.in_place or 0.0) * shrinks
        now = min(start + length, seconds)
        line.idle["scale_down" if shrinks else "scale_up"] += mesh.members * (now - start)
        pool.advance(line, start, now)
        mesh.lose(now)
        mesh.members += pool.take(slices - mesh.members)
    return line


class _Mesh:
    """The slices that a learner trains with."""

    def __init__(
        self, slices: int, recovery: Recovery, interruptions: Interruptions, pool: Pool, line: Timeline
    ) -> None:
        self.slices = self.members = slices
        self._recovery, self._pool, self._line = recovery, pool, line
        self._coming = zip(interruptions.times, interruptions.marks, strict=True)
        self._advance()

    def _advance(self) -> None:
        self._at, self._mark = next(self._coming, (inf, 0.0))

    def next_hit(self) -> float:
        """When a member is interrupted next. What hits a slice that is away counts for nothing."""
        while self._mark * self.slices >= self.members and self._at < inf:
            self._advance()
        return self._at

    def next_join(self) -> float:
        """When the next slice to return will have waited for as long as its wait costs less than a pause."""
        if self.members == self.slices or not self._pool.away:
            return inf
        return self._pool.away[0] + min(self._recovery.patience, self._recovery.pause * self.members)

    def lose(self, now: float) -> bool:
        """Takes out the members that were interrupted until now; whether there was any."""
        hit = False
        while self.next_hit() <= now:
            hit = True
            self._line.interruptions += 1
            if self._recovery.in_place is None:
                ready = self._at + self._recovery.repair + self._recovery.seeding
                self._pool.away.append(max(ready, now))
                self.members -= 1
            self._advance()
        return hit

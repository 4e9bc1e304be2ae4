"""How a learner handles interruptions: with its remaining slices, or by stopping as a whole."""

from __future__ import annotations

from collections import deque
from math import inf

from atoll_runtime.simulate.fleet.setting import Heal, Recovery
from atoll_runtime.simulate.fleet.timeline import Interruptions, Timeline


def elastic(slices: int, recovery: Recovery, interruptions: Interruptions, seconds: float) -> Timeline:
    """Simulates a learner that takes slices out and in during pauses. A pause handles all changes before its end."""
    line = Timeline()
    mesh = _Mesh(slices, recovery, interruptions, line)
    now = 0.0
    while now < seconds:  # each pass handles an interruption or a return, or reaches the end
        scale_up = mesh.next_join()
        scale_down = mesh.next_hit(scale_up) + recovery.notice
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
    """The slices of a learner: those that train, those that are away, and those that are back and wait to join."""

    def __init__(self, slices: int, recovery: Recovery, interruptions: Interruptions, line: Timeline) -> None:
        self.slices = self.members = slices
        self._standing = 0
        self._away: deque[float] = deque()
        """When each returns, ascending."""
        self._recovery, self._line = recovery, line
        self._hits = deque(interruptions)

    def next_hit(self, until: float) -> float:
        """Returns when a member is interrupted next. Drops earlier interruptions of other slices, up to `until`: later
        on those slices may be members again."""
        while self._hits and self._hits[0][0] <= until and self._hits[0][1] * self.slices >= self.members:
            self._hits.popleft()
        return self._hits[0][0] if self._hits else inf

    def next_join(self) -> float:
        """Returns when the next slice to return joins: after `patience`, or earlier if its wait has cost as much
        chip-time as a pause."""
        if not self._away:
            return inf
        return self._away[0] + min(self._recovery.patience, self._recovery.pause * self.members)

    def advance(self, start: float, end: float) -> None:
        """Accounts for the time of the slices outside the mesh, and moves those that have returned to stand-by."""
        self._line.idle["standby"] += self._standing * (end - start)
        for back in self._away:
            until = min(back, end)
            self._line.idle["repair"] += until - start
            self._line.idle["standby"] += end - until
        while self._away and self._away[0] <= end:
            self._away.popleft()
            self._standing += 1

    def lose(self, now: float) -> bool:
        """Removes the members that were interrupted until `now`. Returns whether there were any."""
        before = self.members
        while (at := self.next_hit(now)) <= now:
            self._hits.popleft()
            self._line.interruptions += 1
            self._away.append(max(at + self._recovery.repair, now))
            self.members -= 1
        return self.members < before

    def join(self) -> None:
        """Adds all waiting slices to the members."""
        self.members, self._standing = self.members + self._standing, 0


def rigid(slices: int, recovery: Recovery, interruptions: Interruptions, seconds: float) -> Timeline:
    """Simulates a learner that stops until the hardware is back, and for a pause after that.

    Hardware that is interrupted meanwhile is replaced at the same time. With one wait after another the goodput would
    be far below the published row.
    """
    pause = Heal(detect=0, schedule=0, start=recovery.pause, restore=0, catch_up=0, unmerged=0)
    return unit(slices, recovery, pause, interruptions, seconds, again=False)


def unit(
    slices: int,
    recovery: Recovery,
    heal: Heal,
    interruptions: Interruptions,
    seconds: float,
    *,
    again: bool = True,
) -> Timeline:
    """Simulates a unit that is re-created and seeded. An interruption during the heal starts the heal `again`, or has
    no effect."""
    line, now = Timeline(), 0.0
    hits = iter([*(time for time, _ in interruptions), inf])
    hit = next(hits)
    while now < seconds:  # each pass handles an interruption or reaches the end
        stop = min(hit + recovery.notice, seconds)
        line.step(now, stop, slices, min(heal.unmerged, stop - now) if hit < inf else 0.0)
        now = hardware = stop
        while hit <= now < seconds:
            line.interruptions += 1
            hardware = max(hardware, hit + recovery.repair, now)
            hit = next(hits)
            now = _heal(line, slices, heal, now, hardware, min(hit, seconds) if again else seconds)
            while hit < now and not again:
                hit = next(hits)
    return line


def _heal(line: Timeline, slices: int, heal: Heal, start: float, hardware: float, limit: float) -> float:
    """Accounts for one attempt to heal, up to `limit`. Returns when it ended."""
    created = start + heal.detect + heal.schedule
    bound = max(created, hardware)
    started = bound + heal.pull + heal.start
    phases = (
        ("restart", created),
        ("waiting", bound),
        ("restart", started),
        ("seeding", started + heal.restore + heal.catch_up),
    )
    now, limit = start, max(limit, start)
    for cause, end in phases:
        until = min(end, limit)
        line.idle[cause] += slices * (until - now)
        now = until
    return now

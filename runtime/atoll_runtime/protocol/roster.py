"""Which units of a shard are live, and for which units each round waits. Updated unit by unit.

An event concerns at most one unit, so its cost does not grow with the number of units. The roster follows from the
units and the rounds. It is in no record and on no tape, and is built again when these are read back.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import FAST_FACTOR, Rules
from atoll_runtime.protocol.units import Unit


class Ranking:
    """A value for each name, sorted by value. A change moves references in one list, which takes microseconds for
    thousands."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._sorted: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def set(self, name: str, value: float) -> None:
        """Sets the value of this name."""
        if self._values.get(name) != value:
            self.drop(name)
            self._values[name] = value
            insort(self._sorted, (value, name))

    def drop(self, name: str) -> None:
        """Forgets a name."""
        value = self._values.pop(name, None)
        if value is not None:
            del self._sorted[bisect_left(self._sorted, (value, name))]

    def value(self, name: str) -> float:
        """The value of this name; 0 if it has none."""
        return self._values.get(name, 0.0)

    def first(self) -> tuple[float, str] | None:
        """The least value and its name; None if there is none."""
        return self._sorted[0] if self._sorted else None

    @property
    def median(self) -> float:
        """The lower median; 0 if there is no value."""
        return self._sorted[(len(self) - 1) // 2][0] if self._sorted else 0.0

    def largest(self, limit: float) -> float:
        """The largest value up to `limit`; 0 if there is none."""
        at = bisect_right(self._sorted, limit, key=lambda entry: entry[0])
        return self._sorted[at - 1][0] if at else 0.0


class Roster:
    """The roster as of the last event. Times never decrease."""

    def __init__(self, rules: Rules, units: Iterable[Unit], collecting: Iterable[Round]) -> None:
        self.live: dict[str, Unit] = {}
        """Units that can contribute now, in no order."""
        self.awaited: dict[RoundId, set[str]] = {}
        """For each collecting round the live units that may still contribute."""
        self.silent: dict[str, int] = {}
        """Incarnations of connected units that have reported, but not recently."""
        self.connected: set[str] = set()
        """Units with at least one connected host, even if others are missing."""
        self._silence, self._slow_factor = rules.silent_after, rules.slow_factor
        self._collecting: dict[RoundId, Round] = {}
        self._ends = Ranking()
        self._steady, self._new = Ranking(), Ranking()
        """Step times of units that count, and of those with an unsteady pace, which count only if there is no other."""
        self._least = Ranking()
        """The shortest step of each steady unit, live or not: what a unit that is cut off from here sends to other
        shards, or has sent before, is judged by it."""
        for unit in units:
            self.look(unit, -math.inf)
        for held in collecting:
            self.open(held)

    @property
    def slowest(self) -> float:
        """Seconds of an inner step of the slowest live unit that sets the pace of the run. A unit does not set it if
        its steps take more than `Rules.slow_factor` times the median. Without the guard a new unit counts once its pace
        is steady."""
        return self._paces.largest(self._slow_factor * self._paces.median)

    def outpaced(self, unit: str) -> str:
        """Why this live unit is too slow to set the pace of the run; empty if it is not."""
        paces, factor = self._paces, self._slow_factor
        seconds = paces.value(unit)
        if not seconds > factor * paces.median:  # not a number without the guard while no unit is live
            return ""
        return (
            f"steps of {seconds:.5g} s, more than {factor:g} × the median of {paces.median:.5g} s: does not set the "
            "interval, contributes at its own pace"
        )

    @property
    def _paces(self) -> Ranking:
        """The step times that set the clock's pace."""
        return self._steady if len(self._steady) else self._new

    @property
    def paced(self) -> int:
        """Units with a steady pace, live or not."""
        return len(self._least)

    @property
    def fastest(self) -> float:
        """Seconds of the shortest reported step of a unit with a steady pace; 0 if none is known. It is at least
        the median of their shortest steps divided by `FAST_FACTOR`, so that no unit alone decides it."""
        first = self._least.first()
        return max(first[0], self._least.median / FAST_FACTOR) if first else 0.0

    @property
    def ends(self) -> float:
        """Until when all live units stay live without another report."""
        first = self._ends.first()
        return math.inf if first is None else first[0]

    def expire(self, now: float) -> None:
        """Removes units that have been silent for too long from the live ones."""
        while (first := self._ends.first()) is not None and first[0] < now:
            self.silent[first[1]] = self.live[first[1]].incarnation
            self._leave(first[1])

    def look(self, unit: Unit, now: float) -> None:
        """Updates the roster after a change of the unit, or of what a round has received from it."""
        if unit.hosts:
            self.connected.add(unit.name)
        else:
            self.connected.discard(unit.name)
        if unit.pace.steady:
            self._least.set(unit.name, unit.pace.least)
        else:
            self._least.drop(unit.name)
        until = unit.until(self._silence)
        self.silent.pop(unit.name, None)
        if until is None or until < now:
            self._leave(unit.name)
            if until is not None:
                self.silent[unit.name] = unit.incarnation
            return
        self.live[unit.name] = unit
        self._ends.set(unit.name, until)
        # With the guard a first sample counts too: it is bounded by the median, and without it the first unit that has
        # two samples would be the median alone.
        paces = self._steady if unit.pace.steady or math.isfinite(self._slow_factor) else self._new
        paces.set(unit.name, unit.pace.value or 0.0)
        for round_id, held in self._collecting.items():
            if held.answered(unit.name):
                self.awaited[round_id].discard(unit.name)
            else:
                self.awaited[round_id].add(unit.name)

    def open(self, held: Round) -> None:
        """A round collects from now on."""
        self._collecting[held.id] = held
        self.awaited[held.id] = {name for name in self.live if not held.answered(name)}

    def close(self, round_id: RoundId) -> None:
        """A round no longer collects."""
        self._collecting.pop(round_id, None)
        self.awaited.pop(round_id, None)

    def _leave(self, name: str) -> None:
        if self.live.pop(name, None) is None:
            return
        for values in (self._ends, self._steady, self._new):
            values.drop(name)
        for awaited in self.awaited.values():
            awaited.discard(name)

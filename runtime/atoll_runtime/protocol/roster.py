"""Who of a shard's units lives, and whom each round waits for: kept as it changes, unit by unit.

An event is of one unit at most, so what it costs does not grow with the others. All of it follows from the units and
the rounds, and is found anew where they are read back: it stands in no record and on no tape.
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
    """A value for each name, in their order. A change moves references in one list: microseconds for thousands."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._sorted: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def set(self, name: str, value: float) -> None:
        """Gives this name a value, in place of the one that it has."""
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
        """Of this name; 0 where it has none."""
        return self._values.get(name, 0.0)

    def first(self) -> tuple[float, str] | None:
        """The least value and its name; None where there is none."""
        return self._sorted[0] if self._sorted else None

    @property
    def median(self) -> float:
        """The lower one of an even number of values; 0 where there is none."""
        return self._sorted[(len(self) - 1) // 2][0] if self._sorted else 0.0

    def largest(self, limit: float) -> float:
        """The largest value that is no larger than `limit`; 0 where there is none."""
        at = bisect_right(self._sorted, limit, key=lambda entry: entry[0])
        return self._sorted[at - 1][0] if at else 0.0


class Roster:
    """As of the last event. Times never go back."""

    def __init__(self, rules: Rules, units: Iterable[Unit], collecting: Iterable[Round]) -> None:
        self.live: dict[str, Unit] = {}
        """Units that can contribute now, in no order."""
        self.awaited: dict[RoundId, set[str]] = {}
        """Of each collecting round: the live units that may still contribute."""
        self.silent: dict[str, int] = {}
        """Incarnations of connected units that have reported, but not lately."""
        self.connected: set[str] = set()
        """Units of which a host is here, also where others are wanted."""
        self._silence, self._slow_factor = rules.silent_after, rules.slow_factor
        self._collecting: dict[RoundId, Round] = {}
        self._ends = Ranking()
        self._steady, self._new = Ranking(), Ranking()
        """Step times. Newcomers are asked where nobody is steady; who is, stays so while it lives."""
        self._least = Ranking()
        """The shortest step of each."""
        for unit in units:
            self.look(unit, -math.inf)
        for held in collecting:
            self.open(held)

    @property
    def slowest(self) -> float:
        """Seconds of an inner step of the slowest live unit that sets the pace of the run: one whose steps take more
        than `Rules.slow_factor` times the median keeps its own. A newcomer counts once its pace is steady."""
        return self._paces.largest(self._slow_factor * self._paces.median)

    def outpaced(self, unit: str) -> str:
        """Why this live unit is too slow to set the pace of the run; empty where it is not."""
        paces, factor = self._paces, self._slow_factor
        seconds = paces.value(unit)
        if seconds <= factor * paces.median:
            return ""
        return (
            f"steps of {seconds:.5g} s, more than {factor:g} × the median of {paces.median:.5g} s: does not set the "
            "interval, contributes at its own pace"
        )

    @property
    def _paces(self) -> Ranking:
        """What the clock goes by."""
        return self._steady if len(self._steady) else self._new

    @property
    def fastest(self) -> float:
        """Seconds of the shortest step of a live unit whose pace is steady, by its own report: `FAST_FACTOR` below the
        median's at most, so that none alone decides it. 0 where none is known."""
        first = self._least.first()
        return max(first[0], self._least.median / FAST_FACTOR) if first else 0.0

    @property
    def ends(self) -> float:
        """Until when all that live now do so without another report."""
        first = self._ends.first()
        return math.inf if first is None else first[0]

    def expire(self, now: float) -> None:
        """Time has come so far: units that were silent for too long live no more."""
        while (first := self._ends.first()) is not None and first[0] < now:
            self.silent[first[1]] = self.live[first[1]].incarnation
            self._leave(first[1])

    def look(self, unit: Unit, now: float) -> None:
        """Something of the unit has changed, or of what a round has of it."""
        if unit.hosts:
            self.connected.add(unit.name)
        else:
            self.connected.discard(unit.name)
        until = unit.until(self._silence)
        self.silent.pop(unit.name, None)
        if until is None or until < now:
            self._leave(unit.name)
            if until is not None:
                self.silent[unit.name] = unit.incarnation
            return
        self.live[unit.name] = unit
        self._ends.set(unit.name, until)
        paces = self._steady if unit.pace.steady else self._new
        paces.set(unit.name, unit.pace.value or 0.0)
        if unit.pace.steady:
            self._least.set(unit.name, unit.pace.least)
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
        """A round collects no more."""
        self._collecting.pop(round_id, None)
        self.awaited.pop(round_id, None)

    def _leave(self, name: str) -> None:
        if self.live.pop(name, None) is None:
            return
        for values in (self._ends, self._steady, self._new, self._least):
            values.drop(name)
        for awaited in self.awaited.values():
            awaited.discard(name)

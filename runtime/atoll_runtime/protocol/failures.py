"""What went wrong with units in a recorded run, and when: the failure trace that a simulator takes in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from atoll_runtime.protocol.effects import Effect, Note
from atoll_runtime.protocol.events import Event, Left
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Hello
from atoll_runtime.protocol.units import Unit

What = Literal["Joined", "Replaced", "Left", "Silent", "Back", "Dropped", "Restarted"]
"""A host connected; with a higher incarnation than before; its session ended; the unit was not heard of for so long
that it is not waited for; was heard of again; its contribution was not taken; the syncer's process began again."""


@dataclass(frozen=True)
class Happening:
    """An entry of the trace; as JSON, an object of these fields."""

    seconds: float
    """Since the tape began."""
    t: int
    """Global step of the shard."""
    unit: str
    """Empty for the syncer itself."""
    incarnation: int
    what: What
    host: int | None = None
    """Of `Joined`, `Replaced` and `Left`."""
    why: str = ""
    """Of `Dropped`."""


@dataclass
class Watch:
    """Looks at a machine after each event."""

    trace: list[Happening] = field(default_factory=list)
    _incarnations: dict[str, int] = field(default_factory=dict)
    _silent: set[str] = field(default_factory=set)

    def begin(self, machine: Syncer, seconds: float, *, restarted: bool) -> None:
        """A segment starts with this machine."""
        self._incarnations = {name: unit.incarnation for name, unit in machine.units.items()}
        if restarted:
            self._silent.clear()
            self.trace.append(Happening(seconds, machine.step, "", 0, "Restarted"))

    def see(
        self, event: Event, effects: Sequence[Effect], machine: Syncer, now: float, seconds: float
    ) -> None:
        """The machine has handled the event. `now`: on its own clock."""

        def add(unit: str, what: What, incarnation: int, host: int | None = None, why: str = "") -> None:
            self.trace.append(Happening(seconds, machine.step, unit, incarnation, what, host, why))

        if isinstance(event, Hello) and event.incarnation == machine.units[event.unit].incarnation:
            before = self._incarnations.get(event.unit, 0)
            what: What = "Replaced" if 0 < before < event.incarnation else "Joined"
            self._incarnations[event.unit] = event.incarnation
            add(event.unit, what, event.incarnation, event.host)
        if isinstance(event, Left):
            add(event.unit, "Left", event.incarnation, event.host)
        for effect in effects:
            if isinstance(effect, Note) and effect.entry.get("event") == "dropped":
                name = str(effect.entry["unit"])
                add(name, "Dropped", self._incarnations.get(name, 0), why=str(effect.entry["why"]))
        for name, unit in machine.units.items():
            if silent(unit, now, machine.rules.silent_after) != (name in self._silent):
                self._silent ^= {name}
                add(name, "Silent" if name in self._silent else "Back", unit.incarnation)


def silent(unit: Unit, now: float, least: float) -> bool:
    """Connected and once heard of, but not lately."""
    until = unit.until(least)
    return until is not None and now > until

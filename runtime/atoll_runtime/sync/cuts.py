"""Consistent cuts by markers (Chandy and Lamport, 1985), without a pause: a shard's part.

Every message says at which cut its sender had recorded itself last, so one that overtakes the marker (transfers do
not run through the session) makes the receiver record itself first (Lai and Yang, 1987).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll_runtime.sync import clocks
from atoll_runtime.sync.events import NO_CUT, CutId

GIVEN_UP = -1


@dataclass
class Cuts:
    """Cuts that this shard has recorded."""

    interval: int
    """Global steps between two cuts."""
    newest: CutId = NO_CUT
    merges: int = 0
    """Merges that the newest cut holds; GIVEN_UP once it was given up."""
    goal: str = ""
    """The target that was the run's when the newest cut was recorded."""
    saving: CutId = NO_CUT
    """The newest one that was handed to be saved since the process began."""
    running: bool = False
    """The newest cut is neither whole nor given up (known to its initiator alone)."""
    channels: dict[tuple[str, int], int] = field(default_factory=dict)
    """Contributions that came through each host's channel since this shard recorded itself; open ones alone."""
    marks: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Of each unit that has recorded itself for the newest cut: incarnation, tokens trained."""

    def due(self, step: int) -> bool:
        """`step` has passed another interval, and no cut is under way."""
        return not self.running and step // self.interval > max(self.newest.step, 0) // self.interval

    def record(self, cut: CutId, hosts: list[tuple[str, int]]) -> None:
        """The state is recorded now, for a cut that is later than the newest. `hosts`: those connected."""
        self.newest, self.running = cut, True
        self.channels = dict.fromkeys(hosts, 0)
        self.marks = {}

    def ended(self, cut: CutId, whole: bool) -> None:
        """It is under way no more."""
        if cut == self.newest:
            self.running = False
            self.merges = self.merges if whole else GIVEN_UP

    def received(self, unit: str, host: int) -> None:
        """A contribution came. Before its host's marker it belongs to the channel's state: it is in flight."""
        if (unit, host) in self.channels:
            self.channels[unit, host] += 1

    def mark(self, unit: str, incarnation: int, host: int, cut: CutId, trained: int) -> bool:
        """A host's marker came; true when its channel is closed by it."""
        if cut != self.newest:
            return False
        if host == 0:
            self.marks[unit] = incarnation, trained
        return self.channels.pop((unit, host), None) is not None

    def clocks(self) -> dict[str, dict[str, int]]:
        """Vector clocks of the units that have recorded themselves for the newest cut."""
        marked = {
            clocks.unit(name, incarnation): trained for name, (incarnation, trained) in self.marks.items()
        }
        return {who: {who: trained} for who, trained in marked.items()}

    def drop(self, unit: str, host: int) -> None:
        """The host is gone, and its channel with it."""
        self.channels.pop((unit, host), None)


def given_up(cut: CutId, newest: int | None, waited: float, patience: float) -> bool:
    """Whether a cut that lacks parts is left for the next one after `waited` seconds.

    Never the final one, for it ends the run, nor the first (`newest` is None), without which no unit is seeded.
    """
    return not cut.final and newest is not None and waited > patience

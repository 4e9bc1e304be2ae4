"""Consistent cuts without a pause: a shard's part of them.

Only shard 0 begins a cut, and tells the other shards and the learners (Chandy and Lamport, 1985). Messages of a learner
name the last cut for which it had recorded itself. This shows when one overtakes the message of shard 0 (Lai and Yang,
1987): a shard takes no message that was sent after a cut for which the shard has not recorded itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atoll_runtime.protocol.identifiers import NO_CUT, CutId

GIVEN_UP = -1


@dataclass
class Cuts:
    """Cuts for which this shard has recorded itself."""

    interval: int
    """Global steps between two cuts."""
    newest: CutId = NO_CUT
    merges: int = 0
    """Merges that the newest cut holds; GIVEN_UP if it was given up, holds another state than was recorded, or is where
    the shard started."""
    started: int = 1
    """Number of the first cut of this process; see `CutId`."""
    saving: CutId = NO_CUT
    """The newest cut that this process has started to save."""
    saved: CutId = NO_CUT
    """The newest cut of which this shard's part is saved, as far as this process knows; at shard 0, that is whole."""
    parts: set[int] = field(default_factory=set)
    """Shards other than 0 that have told shard 0 that their part of the newest cut is saved."""

    @property
    def running(self) -> bool:
        """The newest cut is neither whole nor given up."""
        return self.saving == self.newest and self.saved != self.newest and self.merges != GIVEN_UP

    def due(self, step: int) -> bool:
        """`step` has passed another interval, and no cut is under way."""
        return not self.running and step // self.interval > max(self.newest.step, 0) // self.interval

    def following(self, step: int, final: bool = False) -> CutId:
        """The cut that shard 0 begins next, at global step `step`."""
        return CutId(max(self.started, self.newest.number + 1), max(step, self.newest.step + 1), final)

    def forgotten(self, cut: CutId) -> bool:
        """Shard 0 does not know this cut of a learner: it began before shard 0's volume was lost or restored."""
        return self.newest < cut and cut.number < self.started

    def unheard(self, cut: CutId) -> str:
        """Why a message sent after `cut` is not taken; empty if the shard has recorded itself for `cut`."""
        return (
            "" if cut <= self.newest else f"it was sent after cut {cut.step}, of which shard 0 has not told"
        )

    def record(self, cut: CutId, merges: int) -> None:
        """The state is recorded now, for a cut later than the newest."""
        self.newest, self.merges, self.parts = cut, merges, set()

    def save(self) -> None:
        """The newest cut is being saved from now on."""
        self.saving = self.newest

    def ended(self, cut: CutId, whole: bool, own: bool = True) -> None:
        """The cut is no longer under way; see `CutEnded`."""
        if whole:
            self.saved = max(self.saved, cut)
        if cut == self.newest and not (whole and own):
            self.merges = GIVEN_UP

"""The state of a shard, and what follows from it at any time. `machine.py` changes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from atoll_runtime.protocol import schedule
from atoll_runtime.protocol.cuts import Cuts
from atoll_runtime.protocol.identifiers import NO_CUT, CutId
from atoll_runtime.protocol.messages import Orders, Standing
from atoll_runtime.protocol.rounds import Rounds
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.protocol.units import Unit


@dataclass
class ShardState:
    """What a shard knows."""

    rules: Rules
    rounds: Rounds
    cuts: Cuts
    step: int = 0
    """The last global step that was taken here. If a round was due at it, that round was opened."""
    orders: Orders = field(default_factory=Orders)
    """The decisions of shard 0. Another shard has them as told by shard 0."""
    final: str = ""
    """URI of the final cut; not empty once finished."""
    committed: dict[str, Any] = field(default_factory=dict)
    """The record of the newest durable merge. A cut holds it together with the durable fragments."""

    @property
    def coordinates(self) -> bool:
        """This is shard 0, which decides for all."""
        return self.rules.shard == COORDINATOR

    @property
    def versions(self) -> list[int]:
        return [versions.current for versions in self.rounds.versions]

    @property
    def units(self) -> dict[str, Unit]:
        return self.rounds.units

    @property
    def tokens(self) -> int:
        """Merged tokens. A token counts in full when each fragment that the shard owns has merged it."""
        return self.rounds.tokens // max(len(self.rounds.owned), 1)

    @property
    def sealed(self) -> bool:
        """The final cut has begun, so nothing more is merged."""
        return self.orders.ending and self.orders.cut.final

    @property
    def finishing(self) -> bool:
        """No new rounds are opened, because all up to the last step of the run's clock were."""
        return self.orders.ending and (self.sealed or self.step >= self.orders.step)

    @property
    def standing(self) -> Standing:
        """What shard 0 should know of this shard."""
        done, cuts = self.finishing and not self.rounds.in_flight, self.cuts
        kept = cuts.saved if cuts.saved == cuts.newest and cuts.merges == self.rounds.merges else NO_CUT
        collecting = all(held.stage in ("Early", "Collecting") for held in self.rounds.in_flight.values())
        idle = collecting and not self.rounds.roster.connected
        return Standing(self.step, done, cuts.saved, kept, idle)

    @property
    def current(self) -> bool:
        """The newest cut is saved and holds every merge, and no more can come, as far as this shard knows."""
        return self.standing.idle and self.standing.kept == self.cuts.newest

    @property
    def behind(self) -> list[int]:
        """Shards for which the end waits."""
        return [COORDINATOR]

    @property
    def news(self) -> Orders | Standing:
        """What the other shards, or shard 0, are told."""
        return self.standing

    def part(self, cut: CutId) -> dict[str, Any]:
        """What a cut holds of this machine, besides the durable fragments."""
        return {**self.committed, "cut": [cut.number, cut.step, cut.final]}

    @property
    def following(self) -> int:
        """The step that this shard takes next. A shard that is more than two intervals behind the clock skips whole
        intervals, so that its fragments are due in the same order as before, and none is left out for ever."""
        whole = (self.orders.step - self.step - 1) // self.rules.interval - 1
        return self.step + 1 + max(0, whole) * self.rules.interval

    @property
    def opens(self) -> bool:
        """The next step is not beyond the clock, and may be taken now."""
        return self.following <= self.orders.step and self.may_open(self.following)

    def next_step(self, now: float) -> int:
        """The step that would be taken now if there were room for its round; 0 if none is due."""
        return self.following if self.following <= self.orders.step else 0

    def may_open(self, step: int) -> bool:
        """There is room for the round that is due at this step, and enough units are live for it."""
        p = self.due(step)
        return self.manned and (p is None or self.rounds.room(p))

    @property
    def manned(self) -> bool:
        """Enough units are live for a round, and more may be merged."""
        return not self.sealed and len(self.rounds.roster.live) >= self.rules.quorum

    def due(self, step: int) -> int | None:
        """The fragment that is due at this step, if the shard owns a part of it."""
        p = schedule.due(step, self.rules.fragments, self.rules.interval)
        return p if p in self.rounds.owned else None

    def record(self) -> dict[str, Any]:
        """Everything small that must survive a restart, JSON types only."""
        return {
            "step": self.step,
            "clock": self.orders.step,
            "versions": list(self.versions),
            "history": [list(versions.history) for versions in self.rounds.versions],
            "since": msgspec.to_builtins([each.since for each in self.rounds.versions], str_keys=True),
            "quickest": self.rounds.lasting,
            "merges": self.rounds.merges,
            "norms": msgspec.to_builtins([each.norms for each in self.rounds.versions]),
            "last_quorum": self.rounds.last_quorum,
            "final": self.final,
            "cut": [self.cuts.newest.number, self.cuts.newest.step, self.cuts.newest.final],
            "cut_merges": self.cuts.merges,
            "units": {name: unit.record() for name, unit in self.units.items()},
        }

"""What shard 0 decides for the whole run (the clock, cuts, the end, who is silent), and what another shard does with
it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from msgspec.structs import replace

from atoll_runtime.protocol.audit import Audits
from atoll_runtime.protocol.effects import RememberStep
from atoll_runtime.protocol.events import CutOrdered, Event, Said, ShardLeft, ShardTold
from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Audit, Orders, Standing
from atoll_runtime.protocol.rules import COORDINATOR
from atoll_runtime.protocol.units import Unit


@dataclass
class Coordinator(Syncer):
    """Shard 0."""

    advanced: float = -math.inf
    """When the clock last advanced, or up to a step earlier if it was due then, so that a late advance is made up
    for."""
    shards: dict[int, Standing] = field(default_factory=dict)
    """The standing of each other shard that is connected."""
    audits: Audits = field(default_factory=Audits)
    """Not in the journal, so the tolerances are measured again after a restart."""
    alone: bool = False
    """The newest cut began in this process while no learner was connected, and none has come since."""

    @property
    def current(self) -> bool:
        """The newest cut is complete, holds every merge of every shard, and nothing can be merged now.

        The last standing of another shard may be older than its newest merge, but not older than the newest cut if it
        names that cut. So the learners must have left before that cut began.
        """
        standings = [self.standing, *self.shards.values()]
        known = len(standings) == self.rules.shards and (self.alone or bool(self.final) or not self.shards)
        return known and all(each.idle and each.kept == self.cuts.newest for each in standings)

    @property
    def behind(self) -> list[int]:
        """Other shards that are not done at this step. One that was away may still be done at an earlier target."""
        done = {n for n, told in self.shards.items() if told.done and told.step >= self.orders.step}
        return [n for n in range(COORDINATOR + 1, self.rules.shards) if n not in done]

    @property
    def news(self) -> Orders | Standing:
        return self.orders

    def _met(self, unit: Unit) -> None:
        self.alone = False

    def _hear(self, event: Event, now: float) -> None:
        match event:
            case ShardTold(shard, standing):
                self._shard_told(shard, standing)
            case ShardLeft(shard):
                self.shards.pop(shard, None)
            case CutOrdered(step):
                self._cut_ordered(step)
            case Said(unit, incarnation, Audit() as audit):
                self._audited(unit, incarnation, audit)

    def _audited(self, unit_name: str, incarnation: int, audit: Audit) -> None:
        incarnations = {name: unit.incarnation for name, unit in self.units.items()}
        if incarnations.get(unit_name) != incarnation:
            return
        for name, why in self.audits.disagreements(unit_name, incarnation, audit, incarnations).items():
            unit = self.units[name]
            if not unit.suspect:
                unit.suspect = why
                self._note("suspect", unit=name, incarnation=unit.incarnation, why=why)

    def _shard_told(self, shard: int, standing: Standing) -> None:
        self.shards[shard] = standing
        if standing.saved == self.cuts.newest:
            self.cuts.parts.add(shard)
        self._set_clock(max(self.orders.step, standing.step))  # shard 0 may have lost its clock

    def _decide(self, now: float) -> None:
        silent = tuple(sorted(self.rounds.roster.silent.items()))
        ending, orders, rounds = self._reached, self.orders, self.rounds
        if (ending, silent) != (orders.ending, orders.silent):
            self.orders = orders = replace(orders, ending=ending, silent=silent)
        fastest = rounds.fastest
        first = rounds.slowest and fastest and not (orders.seconds and orders.fastest)
        # Otherwise both are told when the clock advances, and it may stand, or a slow unit may set it.
        if first or 0 < fastest < orders.fastest / 2:
            self.orders = replace(orders, seconds=rounds.slowest, fastest=fastest)

    @property
    def _reached(self) -> bool:
        """The run is at its target."""
        steps, tokens = self.rules.target_steps, self.rules.target_tokens
        return (steps is not None and self.orders.step >= steps) or (
            tokens is not None and self.tokens >= tokens
        )

    # the clock

    def _keep_clock(self, now: float) -> None:
        """The clock advances when shard 0 has opened all its rounds and the slowest live unit has had time for a step,
        so the real H ≈ H."""
        if self._clock_runs and now >= self._next:
            self.advanced = max(self._next, now - self.rounds.slowest)
            self._set_clock(self.orders.step + 1)

    def next_step(self, now: float) -> int:
        """As for every shard; the step to which the clock would advance if shard 0 has taken all steps of its clock."""
        return self.orders.step + 1 if self._level and now >= self._next else super().next_step(now)

    @property
    def _next(self) -> float:
        """When the clock may advance, at the pace of the slowest unit that is live now."""
        return self.advanced + self.rounds.slowest

    @property
    def _clock_runs(self) -> bool:
        return self._level and self.may_open(self.orders.step + 1)

    @property
    def _level(self) -> bool:
        """Shard 0 has taken all steps of its clock, and the run is not at its target."""
        return self.step >= self.orders.step and not self._reached

    def _set_clock(self, step: int) -> None:
        if step > self.orders.step:
            rounds = self.rounds
            self.orders = replace(self.orders, step=step, seconds=rounds.slowest, fastest=rounds.fastest)
            if self.rules.shards > 1:
                self.rounds.effects.append(RememberStep(step))

    def _wakes(self, now: float) -> list[float]:
        wakes = super()._wakes(now)
        if self._clock_runs or now < self._next:
            wakes.append(max(self._next, now))
        return wakes

    # cuts and the end

    def _persisted(self, round_id: RoundId, now: float) -> None:
        super()._persisted(round_id, now)
        if not self._reached and self.cuts.due(self.step):  # at the target the final cut is next
            self._begin_cut(self.step)

    def _begin_cut(self, step: int, final: bool = False) -> None:
        """The next orders tell the others of it."""
        self.alone = not self.rounds.roster.connected
        cut = self.cuts.following(step, final)
        self._record(cut)
        self.orders = replace(self.orders, cut=cut)

    def _cut_ordered(self, step: int) -> None:
        """Begins a cut, unless one of this step or a later one is complete or under way, or the run is ending."""
        newest = self.cuts.newest
        if self.final or self.orders.ending:
            return
        if step <= newest.step and (self.cuts.running or self.cuts.saved == newest):
            return
        if step <= newest.step and not newest.number and self.cuts.merges == self.rounds.merges:
            self._save()  # the run's initial state: each shard has it, unless it has merged since and was restarted
        else:
            self._begin_cut(max(step, self.step))

    def _heed(self, cut: CutId) -> str:
        if not self.final and self.cuts.forgotten(cut):
            self._begin_cut(self.step)  # a later cut replaces it
        return super()._heed(cut)

    def _conclude(self) -> None:
        """Begins the final cut once every shard is done."""
        begun = self.cuts.newest.final and self.cuts.saving == self.cuts.newest
        if self.standing.done and not begun and not self.behind:
            self._begin_cut(self.step, final=True)


@dataclass
class Follower(Syncer):
    """A shard other than 0. It merges its own tensors by shard 0's clock."""

    def _hear(self, event: Event, now: float) -> None:
        if isinstance(event, Orders):
            self._take_orders(event, now)

    def _take_orders(self, orders: Orders, now: float) -> None:
        before, self.orders = self.orders, orders
        rounds = self.rounds  # a shard 0 that has just begun does not know the pace yet
        rounds.seconds, rounds.quickest = orders.seconds or rounds.seconds, orders.fastest or rounds.quickest
        if orders.silent != before.silent:
            self.rounds.hush(dict(orders.silent), now)
        if orders.final and not self.final:
            self._finished(orders.final)

    def _met(self, unit: Unit) -> None:
        unit.hushed = (unit.name, unit.incarnation) in self.orders.silent

    def _conclude(self) -> None:
        """Records this shard for the cut that shard 0 has begun. Saves the newest cut again if an earlier process
        recorded it, this one has not saved it, and nothing was merged since."""
        cut, cuts = self.orders.cut, self.cuts
        if cut > cuts.newest:
            if cut.final:
                # After a crash that made this shard forget that it was done, rounds may be collecting again.
                self.rounds.close("the final cut has begun")
            if not (cut.final and self.rounds.in_flight):
                self._record(cut)
        elif cut == cuts.newest and cuts.saving != cut and cuts.merges == self.rounds.merges:
            self._save()

"""A shard's state machine: clock, rounds, membership, cuts, the end. Pure: events in, effects out."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from atoll_runtime.sync import clocks, schedule
from atoll_runtime.sync.cuts import Cuts
from atoll_runtime.sync.events import (
    NO_CUT,
    CutEnded,
    CutId,
    CutOrdered,
    Declined,
    Effect,
    Event,
    Evict,
    FinalCut,
    Joined,
    Left,
    Marked,
    Merged,
    MergeFailed,
    Offered,
    Ordered,
    Orders,
    Part,
    Persisted,
    Received,
    RecordCut,
    Remember,
    RememberJoin,
    RememberStep,
    Reported,
    RoundId,
    SendMarkers,
    SendOrders,
    SendStanding,
    ShardLeft,
    ShardTold,
    Standing,
    StopAll,
    Tick,
    Wake,
)
from atoll_runtime.sync.pace import Pace
from atoll_runtime.sync.rounds import Rounds, note
from atoll_runtime.sync.rules import COORDINATOR, Rules
from atoll_runtime.sync.units import Unit


@dataclass
class Syncer:
    """One shard of a run's syncer. `handle` is its only way to change."""

    rules: Rules
    rounds: Rounds
    cuts: Cuts
    pace: Pace = field(default_factory=Pace)
    step: int = 0
    """The last global step whose round, if one was due, was opened here."""
    orders: Orders = field(default_factory=Orders)
    """What shard 0 has decided: here, or as it told this shard."""
    shards: dict[int, Standing] = field(default_factory=dict)
    """Where the other shards are that are connected to shard 0."""
    final: str = ""
    """URI of the final cut; not empty once finished."""
    committed: dict[str, Any] = field(default_factory=dict)
    """The record of the newest durable merge: what a cut holds, together with the durable fragments."""
    _told: Orders | Standing | None = None
    """What the others, or shard 0, were told last."""

    @classmethod
    def begin(cls, rules: Rules, sizes: tuple[int, ...], versions: list[int], step: int = 0) -> Syncer:
        """A machine that starts from these versions: no unit known, no round in flight."""
        newest = CutId(0, step)
        machine = cls(rules, Rounds(rules, sizes, versions), Cuts(rules.cut_interval, newest))
        machine.step = max(step, *versions)
        if machine.coordinates:
            machine.orders = Orders(step=machine.step, cut=newest)
        machine.committed = machine.record()
        return machine

    @property
    def coordinates(self) -> bool:
        """This is shard 0, which decides for all."""
        return self.rules.shard == COORDINATOR

    @property
    def versions(self) -> list[int]:
        return self.rounds.versions

    @property
    def units(self) -> dict[str, Unit]:
        return self.rounds.units

    @property
    def tokens(self) -> int:
        """Tokens merged: a token counts when each fragment that the shard owns has it."""
        owned = sum(size > 0 for size in self.rounds.sizes)
        return self.rounds.tokens // max(owned, 1)

    @property
    def sealed(self) -> bool:
        """The final cut has begun: nothing is merged any more that is not in it."""
        return self.orders.ending and self.orders.cut.final

    @property
    def finishing(self) -> bool:
        """No new rounds: all up to the last step of the run's clock were opened."""
        return self.orders.ending and (self.sealed or self.step >= self.orders.step)

    @property
    def standing(self) -> Standing:
        """What shard 0 should know of this shard."""
        done = self.finishing and not self.rounds.held
        kept = self.cuts.saved if self.cuts.keeps(self.rounds.merges) else NO_CUT
        return Standing(self.step, done, self.cuts.saved, kept)

    @property
    def current(self) -> bool:
        """The newest cut stands, and holds all that was ever merged: in every shard, as shard 0 knows."""
        standings = [self.standing, *self.shards.values()]
        known = len(standings) == (self.rules.shards if self.coordinates else 1)
        return known and all(each.kept == self.cuts.newest for each in standings)

    def vector(self) -> dict[str, int]:
        """The vector clock of the durable state: of each unit the tokens that are merged, for on those Θ depends.

        What units report besides runs ahead of it. Other shards are not in it: nothing durable depends on their clocks,
        which run ahead of their disks.
        """
        known = {clocks.shard(self.rules.shard): self.committed["step"]}
        for name, unit in self.committed["units"].items():
            account = unit["account"]
            merged = max((stop for _, stop in account["settled"]), default=0)
            known[clocks.unit(name, account["incarnation"])] = merged
        return known

    def part(self, cut: CutId) -> dict[str, Any]:
        """What a cut holds of this machine, besides the durable fragments."""
        return {**self.committed, "cut": [cut.number, cut.step, cut.final], "vector": self.vector()}

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about `event`; effects are carried out in their order."""
        effects = self.rounds.effects = []
        self.rounds.roster.expire(now)
        match event:
            case Joined():
                self._joined(event)
            case Left():
                self._left(event)
            case Reported():
                self._reported(event, now)
            case Ordered(orders):
                self._take_orders(orders, now)
            case ShardTold(shard, standing):
                self._shard_told(shard, standing)
            case ShardLeft(shard):
                self.shards.pop(shard, None)
            case Received():
                self._received(event, now)
            case Offered():
                self._offered(event, now)
            case Declined():
                self._heed(event.part.cut)
                self.rounds.decline(event.part, event.why)
            case Merged():
                held = self.rounds.merged(event, now)
                self.rounds.write(held, self.record())
            case MergeFailed():
                self.rounds.discard(event.round, event.reason)
            case Persisted():
                self._persisted(event.round, now)
            case Marked():
                self._marked(event)
            case CutOrdered(step):
                self._cut_ordered(step)
            case CutEnded(cut, whole, own):
                self.cuts.ended(cut, whole, own)
            case FinalCut():
                self._finished(event.uri)
            case Tick():
                pass
        name = subject(event)
        self.rounds.look(name, now)
        if not self.final:
            self._advance(now, name)
        self._tell()
        return effects

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty when it is."""
        return self.cuts.unheard(part.cut) or self.rounds.admit(part)

    def live(self, now: float) -> list[Unit]:
        """Units that can contribute now, by name."""
        return self.rounds.live(now)

    def record(self) -> dict[str, Any]:
        """Everything small that must survive a restart, JSON types only."""
        return {
            "step": self.step,
            "clock": self.orders.step,
            "versions": list(self.versions),
            "history": [list(versions) for versions in self.rounds.history],
            "merges": self.rounds.merges,
            "norms": [[norms.merges, norms.refused] for norms in self.rounds.norms],
            "last_quorum": self.rounds.last_quorum,
            "final": self.final,
            "cut": [self.cuts.newest.number, self.cuts.newest.step, self.cuts.newest.final],
            "cut_merges": self.cuts.merges,
            "units": {name: unit.record() for name, unit in self.units.items()},
        }

    def _joined(self, event: Joined) -> None:
        unit = self.units.get(event.unit)
        if unit is None:
            unit = self.units[event.unit] = Unit.new(event.unit, owned(self.rounds.sizes))
        if event.incarnation < unit.incarnation:
            self.rounds.effects.append(Evict(event.unit, unit.incarnation))
            return
        renewed = unit.join(event, self.step)
        unit.hushed = not self.coordinates and (unit.name, unit.incarnation) in self.orders.silent
        self.rounds.joined(event, renewed)
        if renewed:
            self.rounds.effects += [Evict(event.unit, event.incarnation), RememberJoin()]
        self._note("joined", unit=event.unit, incarnation=event.incarnation, host=event.host)

    def _left(self, event: Left) -> None:
        unit = self.units.get(event.unit)
        if unit is not None and event.incarnation == unit.incarnation:
            unit.leave(event)
            self._note("left", unit=event.unit, incarnation=event.incarnation, host=event.host)

    def _reported(self, event: Reported, now: float) -> None:
        unit = self.units.get(event.unit)
        if unit is not None:
            unit.report(event, now)
            if self.final:
                unit.account.finish()

    def _persisted(self, round_id: RoundId, now: float) -> None:
        self.committed = dict(self.rounds.persisted(round_id, now))
        if self.coordinates and not self.orders.ending and self.cuts.due(self.step):
            self._begin_cut(self.step)

    def _begin_cut(self, step: int, final: bool = False) -> None:
        """Shard 0 alone. The others hear of it with the next orders, learners by a marker."""
        cut = self.cuts.following(step, final)
        self._record(cut)
        self.orders = replace(self.orders, cut=cut)
        self.rounds.effects.append(SendMarkers(cut))

    def _record(self, cut: CutId) -> None:
        """Records this shard's state."""
        self.cuts.record(cut, self.committed["merges"])
        self.rounds.effects.append(Remember(self.record()))
        self._save()

    def _save(self) -> None:
        """Has what was recorded for the newest cut saved."""
        cut = self.cuts.newest
        self.cuts.save()
        self.rounds.effects.append(RecordCut(cut, self.part(cut)))
        self._note("cut", cut=cut.step, final=cut.final)

    def _cut_ordered(self, step: int) -> None:
        """Begins a cut, unless one of this step or a later one stands or is under way. The final one goes before."""
        newest = self.cuts.newest
        if not self.coordinates or self.final or self.orders.ending:
            return
        if step <= newest.step and (self.cuts.running or self.cuts.saved == newest):
            return
        if step <= newest.step and not newest.number and self.cuts.merges == self.rounds.merges:
            self._save()  # what the run begins with: each shard has it, unless it has merged since and was restarted
        else:
            self._begin_cut(max(step, self.step))

    def _take_orders(self, orders: Orders, now: float) -> None:
        before, self.orders = self.orders, orders
        self.rounds.seconds, self.rounds.quickest = orders.seconds, orders.fastest
        if orders.silent != before.silent:
            self.rounds.hush(dict(orders.silent), now)
        if orders.final and not self.final:
            self._finished(orders.final)

    def _shard_told(self, shard: int, standing: Standing) -> None:
        self.shards[shard] = standing
        if standing.saved == self.cuts.newest:
            self.cuts.parts.add(shard)
        self._set_clock(max(self.orders.step, standing.step))  # which shard 0 has forgotten with its volume

    def _offered(self, event: Offered, now: float) -> None:
        unheard = self._heed(event.part.cut)
        if unheard:
            self.rounds.decline(event.part, unheard)
        else:
            self.rounds.offer(event, now)

    def _received(self, event: Received, now: float) -> None:
        unheard = self._heed(event.part.cut)
        if unheard:
            self.rounds.decline(event.part, unheard)
        else:
            self.rounds.take(event, now)

    def _heed(self, cut: CutId) -> str:
        """A learner has recorded itself for this cut: why that is not believed, else empty."""
        if self.coordinates and not self.final and self.cuts.forgotten(cut):
            self._begin_cut(self.step)  # a later one takes its place
        return self.cuts.unheard(cut)

    def _marked(self, event: Marked) -> None:
        why = self._heed(event.cut)
        if why:
            self._note("refused", unit=event.unit, host=event.host, why=why)
        if self.cuts.mark(event.unit, event.incarnation, event.host, event.cut, event.trained):
            self._note("marker", cut=event.cut.step, unit=event.unit)

    def _finished(self, uri: str) -> None:
        self.final = uri
        self.orders = replace(self.orders, final=uri)
        for unit in self.units.values():
            unit.account.finish()
        self._note("finished", uri=uri)
        self.rounds.effects.append(Remember(self.record()))
        if self.coordinates:
            self.rounds.effects.append(StopAll(self.step))

    def _advance(self, now: float, name: str) -> None:
        if self.coordinates:
            silent = tuple(sorted(self.rounds.roster.silent.items()))
            self.orders = replace(self.orders, ending=self._reached(), silent=silent)
        self.rounds.ending = self.finishing
        self.rounds.progress(now, name)
        if self._clock_due(now):
            self.pace.advance(now, self.rounds.slowest)
            self._set_clock(self.orders.step + 1)
        if self._following <= self.orders.step and self._may_open(self._following):
            self._launch(now)
        self.rounds.ending = self.finishing
        if self.coordinates:
            self._end()
        else:
            self._follow_cut()
        self._wake(now)

    def _reached(self) -> bool:
        """The run is at its target."""
        steps, tokens = self.rules.target_steps, self.rules.target_tokens
        return (steps is not None and self.orders.step >= steps) or (
            tokens is not None and self.tokens >= tokens
        )

    def _clock_due(self, now: float) -> bool:
        """Shard 0 has opened all its rounds, and the slowest live unit has had time for a step (so real H ≈ H)."""
        return self._clock_runs and now >= self.pace.due(self.rounds.slowest)

    @property
    def _clock_runs(self) -> bool:
        level = self.coordinates and self.step >= self.orders.step
        return level and not self._reached() and self._may_open(self.orders.step + 1)

    def _set_clock(self, step: int) -> None:
        if step > self.orders.step:
            rounds = self.rounds
            self.orders = replace(self.orders, step=step, seconds=rounds.slowest, fastest=rounds.fastest)
            if self.rules.shards > 1:
                self.rounds.effects.append(RememberStep(step))

    @property
    def _following(self) -> int:
        """The step that this shard takes next. One that was away skips what lies more than H behind the clock: in H
        steps each fragment is due once."""
        return max(self.step, self.orders.step - self.rules.interval) + 1

    def _may_open(self, step: int) -> bool:
        """There is room for what is due at this step, and enough units live for a round."""
        if self.sealed or len(self.rounds.roster.live) < self.rules.quorum:
            return False
        p = self._due(step)
        return p is None or self.rounds.room(p)

    def _due(self, step: int) -> int | None:
        """The fragment that is due here."""
        p = schedule.due(step, self.rules.fragments, self.rules.interval)
        return p if p is not None and self.rounds.sizes[p] else None

    def _launch(self, now: float) -> None:
        """Takes the next step."""
        self.step = self._following
        p = self._due(self.step)
        if p is not None and self.step > self.versions[p]:
            self.rounds.open(RoundId(self.step, p, 0, self.rounds.lineage), now)

    def _end(self) -> None:
        """Begins the final cut once every shard has told that it is at its end."""
        others = [self.shards.get(shard) for shard in range(self.rules.shards) if shard != COORDINATOR]
        begun = self.cuts.newest.final and self.cuts.saving == self.cuts.newest
        if self.standing.done and not begun and all(each is not None and each.done for each in others):
            self._begin_cut(self.step, final=True)

    def _follow_cut(self) -> None:
        """Records this shard for the cut that shard 0 has begun; the same again where this process has not saved what
        an earlier one had recorded, and nothing was merged since."""
        cut, cuts = self.orders.cut, self.cuts
        if cut > cuts.newest:
            if cut.final:
                # What was being collected when a crash made this shard forget that it was at its end.
                self.rounds.close("the final cut has begun")
            if not (cut.final and self.rounds.held):
                self._record(cut)
        elif cut == cuts.newest and cuts.saving != cut and cuts.merges == self.rounds.merges:
            self._save()

    def _tell(self) -> None:
        if self.rules.shards == 1:
            return
        news = self.orders if self.coordinates else self.standing
        if news != self._told:
            self._told = news
            told = SendOrders(news) if isinstance(news, Orders) else SendStanding(news)
            self.rounds.effects.append(told)

    def _wake(self, now: float) -> None:
        wakes, roster = self.rounds.wakes(now), self.rounds.roster
        if math.isfinite(roster.ends):
            wakes.append(roster.ends + 0.001)
        if self._following <= self.orders.step and self._may_open(self._following):
            wakes.append(now)
        elif self._clock_runs:
            wakes.append(max(self.pace.due(self.rounds.slowest), now))
        if wakes:
            self.rounds.effects.append(Wake(max(min(wakes), now)))

    def _note(self, what: str, **facts: object) -> None:
        self.rounds.effects.append(note(what, t=self.step, **facts))


def subject(event: Event) -> str:
    """The unit whose event it is, where that says whether the unit lives, or is waited for; else empty."""
    match event:
        case Joined() | Left() | Reported():
            return event.unit
        case Declined(part) | Offered(part) | Received(part):
            return part.unit
    return ""


def owned(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Fragments of which a shard of these sizes owns a part."""
    return tuple(p for p, size in enumerate(sizes) if size > 0)

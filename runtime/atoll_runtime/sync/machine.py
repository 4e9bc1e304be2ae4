"""A shard's state machine: clock, rounds, membership, cuts, the end. Pure: events in, effects out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atoll_runtime.sync import clocks, schedule
from atoll_runtime.sync.cuts import Cuts
from atoll_runtime.sync.doubts import Doubts, doubt
from atoll_runtime.sync.events import (
    CLOCK_ZERO,
    NO_CUT,
    CutEnded,
    CutId,
    CutOrdered,
    Declined,
    Effect,
    Event,
    Evict,
    FinalCut,
    Heard,
    Joined,
    Left,
    Marked,
    Merged,
    MergeFailed,
    Offered,
    Part,
    Persisted,
    RecordCut,
    Remember,
    RememberJoin,
    Reported,
    RoundId,
    SendClock,
    SendMarkers,
    ShardClock,
    StopAll,
    Tick,
    Wake,
)
from atoll_runtime.sync.pace import Pace
from atoll_runtime.sync.rounds import Rounds, note
from atoll_runtime.sync.rules import Rules
from atoll_runtime.sync.units import Unit

COORDINATOR = 0
"""The shard that begins cuts."""


@dataclass
class Syncer:
    """One shard of a run's syncer. `handle` is its only way to change."""

    rules: Rules
    rounds: Rounds
    pace: Pace
    cuts: Cuts
    final: str = ""
    """URI of the final cut; not empty once finished."""
    committed: dict[str, Any] = field(default_factory=dict)
    """The record of the newest durable merge: what a cut holds, together with the durable fragments."""
    doubts: Doubts = field(default_factory=Doubts)
    _told: ShardClock = CLOCK_ZERO
    _final_cut: CutId = NO_CUT
    """Begun elsewhere; recorded here once no round is in flight."""

    @classmethod
    def begin(cls, rules: Rules, sizes: tuple[int, ...], versions: list[int], step: int = 0) -> Syncer:
        """A machine that starts from these versions: no unit known, no round in flight."""
        pace = Pace(rules.shard, rules.interval, rules.quorum, max(step, *versions), goal=rules.goal)
        machine = cls(rules, Rounds(rules, sizes, versions), pace, Cuts(rules.cut_interval))
        machine.cuts.newest = CutId(step)
        machine.committed = machine.record()
        return machine

    @property
    def step(self) -> int:
        """The clock t: the last global step launched."""
        return self.pace.step

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
    def reached(self) -> bool:
        """The target is reached, here, or at another shard with which this one is level."""
        steps, tokens = self.rules.target_steps, self.rules.target_tokens
        return (
            (steps is not None and self.step >= steps)
            or (tokens is not None and self.tokens >= tokens)
            or (not self.pace.behind and any(clock.ending > 0 for clock in self.pace.believed.values()))
        )

    @property
    def finishing(self) -> bool:
        """No new rounds: the target is reached, or the final cut has begun, perhaps for an earlier target."""
        return self.reached or self._final_awaits or self.cuts.newest.final

    @property
    def outdated(self) -> bool:
        """The newest cut is a final one, which is not known to stand, and the run has another target now."""
        return self.cuts.newest.final and not self.final and self.cuts.goal != self.rules.goal

    @property
    def orderable(self) -> int:
        """The least step of a cut that can hold all that is merged here and does not end the run."""
        return self.cuts.newest.step + (self.outdated or self.cuts.merges != self.rounds.merges)

    @property
    def clock(self) -> ShardClock:
        """What the other shards should know."""
        ending = 0 if not self.reached else 1 if self.rounds.held else 2
        return ShardClock(self.step, ending, self.rules.goal, max(self.cuts.newest.step, 0))

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
        return {**self.committed, "cut": [cut.step, cut.final], "vector": self.vector()}

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
            case Heard():
                self._heard(event)
            case Part():
                self._part(event, now)
            case Offered():
                self._offered(event, now)
            case Declined():
                self._heed(event.part.cut)
                self.rounds.decline(event.part, event.why)
            case Merged():
                held = self.rounds.merged(event)
                self.rounds.write(held, self.record())
            case MergeFailed():
                self.rounds.discard(event.round, event.reason)
            case Persisted():
                self._persisted(event.round, now)
            case Marked():
                self._marked(event)
            case CutOrdered(cut):
                self._ordered(cut)
            case CutEnded(cut, whole):
                self.cuts.ended(cut, whole)
            case FinalCut():
                self._finished(event.uri)
            case Tick():
                pass
        name = subject(event)
        self.rounds.look(name, now)
        if not self.final:
            if self.doubts.told:
                self._believe()
            self._advance(now, name)
        return effects

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty when it is."""
        return self._doubt(part.cut) or self.rounds.admit(part)

    def live(self, now: float) -> list[Unit]:
        """Units that can contribute now, by name."""
        return self.rounds.live(now)

    def record(self) -> dict[str, Any]:
        """Everything small that must survive a restart, JSON types only."""
        return {
            "step": self.step,
            "versions": list(self.versions),
            "history": [list(versions) for versions in self.rounds.history],
            "merges": self.rounds.merges,
            "last_quorum": self.rounds.last_quorum,
            "final": self.final,
            "cut": [self.cuts.newest.step, self.cuts.newest.final],
            "cut_merges": self.cuts.merges,
            "cut_goal": self.cuts.goal,
            "units": {name: unit.record() for name, unit in self.units.items()},
        }

    def _joined(self, event: Joined) -> None:
        unit = self.units.get(event.unit)
        if unit is None:
            unit = self.units[event.unit] = Unit.new(event.unit, owned(self.rounds.sizes))
        if event.incarnation < unit.incarnation:
            self.rounds.effects.append(Evict(event.unit, unit.incarnation))
            return
        self._told_of(event)
        self._told = CLOCK_ZERO  # the host may have missed it, and it may not change any more
        renewed = unit.join(event, self.step)
        self.rounds.joined(event, renewed)
        if renewed:
            self.rounds.effects += [Evict(event.unit, event.incarnation), RememberJoin()]
        self._note("joined", unit=event.unit, incarnation=event.incarnation, host=event.host)

    def _left(self, event: Left) -> None:
        unit = self.units.get(event.unit)
        if unit is not None and event.incarnation == unit.incarnation:
            unit.leave(event)
            self.cuts.drop(event.unit, event.host)
            self.doubts.drop(event.unit, event.host)
            self._note("left", unit=event.unit, incarnation=event.incarnation, host=event.host)

    def _reported(self, event: Reported, now: float) -> None:
        unit = self.units.get(event.unit)
        if unit is not None:
            unit.report(event, now)
            if self.final:
                unit.account.finish()

    def _persisted(self, round_id: RoundId, now: float) -> None:
        self.committed = dict(self.rounds.persisted(round_id, now))
        if self.rules.shard == COORDINATOR and not self.finishing and self.cuts.due(self.step):
            self._see(CutId(self.step))

    def _see(self, cut: CutId) -> None:
        """Records this shard's state, unless it did so for this cut or a later one, or the run is complete."""
        if self.final or cut <= self.cuts.newest:
            return
        if cut.final and self.rules.shard == COORDINATOR and not self.finishing:
            # Final cuts are begun here alone. This one was forgotten with the end that it was for.
            cut = CutId(cut.step + 1)
        if cut.final and self.rounds.held:
            # A shard that was away does not know that the others are at their end. What it still collects would
            # not be in the final cut; what is being merged was sent before it, and will be.
            self._final_cut = cut
            self.rounds.close("the final cut has begun")
            if self.rounds.held:
                return
        hosts = [(unit.name, host) for unit in self.units.values() for host in sorted(unit.hosts)]
        self.cuts.record(cut, hosts)
        self.cuts.merges, self.cuts.goal = self.committed["merges"], self.rules.goal
        self.rounds.effects.append(Remember(self.record()))
        self._record_cut(cut)
        self.rounds.effects.append(SendMarkers(cut))

    def _ordered(self, cut: CutId) -> None:
        """Records this shard's state. A final cut of this target holds all that there is, and goes before."""
        newest = self.cuts.newest
        if self.final or self._final_awaits or (newest.final and not self.outdated):
            return
        if cut > newest:
            self._see(cut)
        elif not newest.final and self.cuts.saving != newest and self.cuts.merges == self.rounds.merges:
            # The process ended while it saved the cut. Nothing was merged since, so the state is still the cut's.
            self._record_cut(newest)

    @property
    def _final_awaits(self) -> bool:
        return self._final_cut > self.cuts.newest

    def _record_cut(self, cut: CutId) -> None:
        self.cuts.saving = cut
        self.rounds.effects.append(RecordCut(cut, self.part(cut)))
        self._note("cut", cut=cut.step, final=cut.final)

    def _heard(self, event: Heard) -> None:
        self.pace.hear(event.unit, event.clocks, self.rounds.roster.live.keys())
        self._heed_doubted()

    def _offered(self, event: Offered, now: float) -> None:
        doubt = self._heed(event.part.cut)
        if doubt:
            self.rounds.decline(event.part, doubt)
        else:
            self.rounds.offer(event, now)

    def _part(self, part: Part, now: float) -> None:
        doubt = self._heed(part.cut)
        if doubt:  # it was sent after a cut, if there is one, that this shard has not recorded itself for
            self.rounds.decline(part, doubt)
            return
        self.cuts.received(part.unit, part.host)
        self.rounds.take(part, now)

    def _doubt(self, cut: CutId) -> str:
        """Why a cut that a learner tells of is not believed. What that one says besides is no proof of it."""
        known = max(self.step, self.pace.ahead, self.pace.cut, self.cuts.newest.step)
        return doubt(cut, known, self.rules)

    def _heed(self, cut: CutId) -> str:
        """Records this shard's state for a cut that a learner tells of, or says why not."""
        why = self._doubt(cut)
        if not why:
            self._see(cut)
        return why

    def _heed_doubted(self) -> None:
        """More is known now."""
        told = self.doubts.told
        self.doubts.told = {host: cut for host, cut in told.items() if self._heed(cut)}

    def _told_of(self, event: Joined | Marked) -> None:
        """A host tells of a cut."""
        self.doubts.drop(event.unit, event.host)
        why = self._heed(event.cut)
        if why:
            self.doubts.told[event.unit, event.host] = event.cut
            self._note("refused", unit=event.unit, host=event.host, why=why)

    def _believe(self) -> None:
        attempts = max((held.attempt for held in self.rounds.held), default=0)
        cut = self.doubts.unopposed(self.rounds.roster.live.keys(), attempts, self.rules.quorum)
        if cut is not None:
            self._see(cut)
            self._heed_doubted()

    def _marked(self, event: Marked) -> None:
        self._told_of(event)
        before = self.cuts.channels.get((event.unit, event.host), 0)
        if self.cuts.mark(event.unit, event.incarnation, event.host, event.cut, event.trained):
            self._note("marker", cut=event.cut.step, unit=event.unit, host=event.host, in_channel=before)

    def _finished(self, uri: str) -> None:
        self.final = uri
        for unit in self.units.values():
            unit.account.finish()
        self._note("finished", uri=uri)
        self.rounds.effects += [Remember(self.record()), StopAll(self.step)]

    def _advance(self, now: float, name: str) -> None:
        self.rounds.ending = self.finishing
        self.rounds.progress(now, name)
        self._launch(now)
        self.rounds.ending = self.finishing
        self._end()
        if self.rules.shards > 1 and self.clock != self._told:
            self._told = self.clock
            self.rounds.effects.append(SendClock(self._told))
        self._wake(now)

    def _launch(self, now: float) -> None:
        """Advances the clock by a step when the slowest live unit has had time for one (so real H ≈ H)."""
        roster = self.rounds.roster
        if self.finishing or not self.pace.may_advance(now, roster.slowest):
            return
        if len(roster.live) < self.rules.quorum:
            return
        following = self.pace.following()
        p = schedule.due(following, self.rules.fragments, self.rules.interval)
        if p is not None and self.rounds.sizes[p] == 0:
            p = None
        if p is not None and not self.rounds.room(p):
            return
        self.pace.advance(now, roster.slowest)
        if p is not None and following > self.versions[p]:
            self.rounds.open(RoundId(following, p, 0, self.rounds.lineage), now)

    def _end(self) -> None:
        """Begins the final cut once every shard is at its end and has no round in flight."""
        newest = self.cuts.newest
        if not self.finishing or self.rounds.held:
            return
        following = max(self.step, newest.step + 1)
        if self._final_awaits:
            self._see(self._final_cut)
        elif self.outdated and self.rules.shard == COORDINATOR:
            self._see(
                CutId(following)
            )  # which takes the place of the final one, at every shard that it comes to
        elif newest.final:
            if self.cuts.saving != newest:  # recorded before a restart; nothing was merged since
                self._record_cut(newest)
        elif self.rules.shard == COORDINATOR and self.pace.all_end(self.rules.shards, 2):
            self._see(CutId(following, final=True))

    def _wake(self, now: float) -> None:
        wakes, roster = self.rounds.wakes(now), self.rounds.roster
        if roster.live:
            wakes.append(roster.ends + 0.001)
        if not self.finishing and len(roster.live) >= self.rules.quorum:
            following = self.pace.following()
            p = schedule.due(following, self.rules.fragments, self.rules.interval)
            if p is None or self.rounds.sizes[p] == 0 or self.rounds.room(p):
                wakes.append(max(self.pace.due(roster.slowest), now))
        if wakes:
            self.rounds.effects.append(Wake(max(min(wakes), now)))

    def _note(self, what: str, **facts: object) -> None:
        self.rounds.effects.append(note(what, t=self.step, **facts))


def subject(event: Event) -> str:
    """The unit whose event it is, where that says whether the unit lives, or is waited for; else empty."""
    match event:
        case Joined() | Left() | Reported() | Part():
            return event.unit
        case Declined(part) | Offered(part):
            return part.unit
    return ""


def owned(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Fragments of which a shard of these sizes owns a part."""
    return tuple(p for p, size in enumerate(sizes) if size > 0)

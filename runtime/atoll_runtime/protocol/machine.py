"""A shard's state machine: rounds, membership, cuts, the end. Pure: events in, effects out.

This file has what every shard does. `coordinator.py` has what shard 0 decides for all, and what another shard does with
that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msgspec.structs import replace

from atoll_runtime.protocol import claims
from atoll_runtime.protocol.effects import Effect, Evict, RecordCut, Remember, Tell, Wake, note
from atoll_runtime.protocol.events import (
    CutEnded,
    Declined,
    Event,
    FinalCut,
    Left,
    LinkTold,
    Merged,
    MergeFailed,
    Persisted,
    Received,
    Said,
)
from atoll_runtime.protocol.identifiers import CutId, RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.messages import Header, Hello, Orders, Part, Report, Standing
from atoll_runtime.protocol.shard import ShardState
from atoll_runtime.protocol.units import Unit


@dataclass
class Syncer(ShardState):
    """One shard of a run's syncer. Only `handle` changes it."""

    _told: Orders | Standing | None = None
    """The last news that the other shards, or shard 0, were told."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """The effects of `event`, which are carried out in order."""
        effects = self.rounds.effects = []
        self.rounds.roster.expire(now)
        match event:
            case Hello():
                self._joined(event, now)
            case Left():
                self._left(event)
            case Said(unit, incarnation, Report() as report):
                self._reported(unit, incarnation, report, now)
            case LinkTold():
                self.rounds.slowed(event)
            case Header() | Received():
                self._contributed(event, now)
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
            case CutEnded(cut, whole, own):
                self.cuts.ended(cut, whole, own)
            case FinalCut():
                self._finished(event.uri)
            case _:
                self._hear(event, now)
        name = subject(event)
        if name in self.units:
            self.rounds.roster.look(self.units[name], now)
        if not self.final:
            self._advance(now, name)
        self._tell()
        return effects

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty if it is."""
        return self.cuts.unheard(part.cut) or self.rounds.admit(part)

    def _joined(self, event: Hello, now: float) -> None:
        unit = self.units.get(event.unit)
        if unit is None:
            unit = self.units[event.unit] = Unit(event.unit, Account(self.rounds.owned))
        if event.incarnation < unit.incarnation:
            self.rounds.effects.append(Evict(event.unit, unit.incarnation))
            return
        left, back = self.rounds.away
        since = left if now < back + claims.LATE_SECONDS else now  # it may have begun without this shard
        renewed = unit.join(event, self.step, since)
        self._met(unit)
        self.rounds.joined(event, renewed)
        if renewed:
            self.rounds.effects += [Evict(event.unit, event.incarnation), Remember()]
        self._note("joined", unit=event.unit, incarnation=event.incarnation, host=event.host)

    def _left(self, event: Left) -> None:
        unit = self.units.get(event.unit)
        if unit is not None and event.incarnation == unit.incarnation:
            unit.leave(event.host)
            self._note("left", unit=event.unit, incarnation=event.incarnation, host=event.host)

    def _reported(self, name: str, incarnation: int, report: Report, now: float) -> None:
        unit = self.units.get(name)
        if unit is None or incarnation != unit.incarnation:
            return
        unit.report(report, now)
        if (use := report.link.use).reason:
            self._note("communication", unit=unit.name, **use.told, reason=use.reason)
        if self.final:
            unit.account.finish()

    def _persisted(self, round_id: RoundId, now: float) -> None:
        self.committed = dict(self.rounds.persisted(round_id, now))

    def _record(self, cut: CutId) -> None:
        """Records this shard's state."""
        self.cuts.record(cut, self.committed["merges"])
        self.rounds.effects.append(Remember())
        self._save()

    def _save(self) -> None:
        """Asks to save what was recorded for the newest cut."""
        cut = self.cuts.newest
        self.cuts.save()
        self.rounds.effects.append(RecordCut(cut, self.part(cut)))
        self._note("cut", cut=cut.step, final=cut.final)

    def _contributed(self, event: Header | Received, now: float) -> None:
        unheard = self._heed(event.part.cut)
        if unheard:
            self.rounds.decline(event.part, unheard)
        elif isinstance(event, Header):
            self.rounds.offer(event, now)
        else:
            self.rounds.take(event, now)

    def _heed(self, cut: CutId) -> str:
        """Why it is not believed that a learner has recorded itself for this cut; else empty."""
        return self.cuts.unheard(cut)

    def _finished(self, uri: str) -> None:
        self.final = uri
        self.orders = replace(self.orders, final=uri)
        for unit in self.units.values():
            unit.account.finish()
        self._note("finished", uri=uri)
        self.rounds.effects.append(Remember())

    def _hear(self, event: Event, now: float) -> None:
        """Handles an event that only shard 0, or only another shard, reacts to."""

    def _met(self, unit: Unit) -> None:
        """A host of this unit has joined."""

    def _decide(self, now: float) -> None:
        """Called before the rounds make progress."""

    def _keep_clock(self, now: float) -> None:
        """Called after the rounds have made progress, before the next one is opened."""

    def _conclude(self) -> None:
        """Called when nothing else is left to do now."""

    def _advance(self, now: float, name: str) -> None:
        self._decide(now)
        self.rounds.ending = self.finishing
        self.rounds.progress(now, name)
        p = self.due(self.next_step(now))
        if p is not None and self.manned:
            self.rounds.hurry(p, now)
        self._keep_clock(now)
        if self.opens:
            self._launch(now)
        self.rounds.ending = self.finishing
        if self.rounds.ending:
            self.rounds.skip(self.step)
        self._conclude()
        wakes = self._wakes(now)
        if wakes:
            self.rounds.effects.append(Wake(max(min(wakes), now)))

    def _launch(self, now: float) -> None:
        """Takes the next step."""
        self.step = self.following
        p = self.due(self.step)
        if p is not None and self.step > self.rounds.versions[p].current:
            self.rounds.open(RoundId(self.step, p, 0, self.rounds.series), now)
        self.rounds.skip(self.step)
        leads = self.rounds.leads()
        for steps in range(1, max(leads.values(), default=0) + 1):
            p = self.due(self.step + steps)
            if p is not None:
                far = [name for name, lead in leads.items() if lead >= steps]
                self.rounds.ask(RoundId(self.step + steps, p, 0, self.rounds.series), far, now)

    def _wakes(self, now: float) -> list[float]:
        """Times at which there may be something to do without an event."""
        wakes = [wake for held in self.rounds.in_flight.values() for wake in held.wakes(now)]
        ends = self.rounds.roster.ends
        if math.isfinite(ends):
            wakes.append(ends + 0.001)
        if self.opens:
            wakes.append(now)
        return wakes

    def _tell(self) -> None:
        news = self.news
        if news != self._told:
            self._told = news
            self.rounds.effects.append(Tell(news))

    def _note(self, what: str, **facts: object) -> None:
        self.rounds.effects.append(note(what, t=self.step, **facts))


def subject(event: Event) -> str:
    """The unit that an event is of; empty if it is of none."""
    match event:
        case Hello(unit=unit) | Left(unit) | Said(unit) | LinkTold(unit):
            return unit
        case Declined(part) | Header(part) | Received(part):
            return part.unit
    return ""

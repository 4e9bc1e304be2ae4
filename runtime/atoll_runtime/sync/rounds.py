"""The syncer's state machine: clock, rounds in flight, membership, the end. Pure: events in, effects out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atoll_runtime.sync import anchors, quorum, schedule
from atoll_runtime.sync.contributions import Contributions
from atoll_runtime.sync.events import (
    Declined,
    Effect,
    Event,
    Evict,
    FinalCut,
    Finish,
    Joined,
    Left,
    Member,
    Merge,
    Merged,
    MergeFailed,
    Note,
    Part,
    Persist,
    Persisted,
    Publish,
    Release,
    Remember,
    Reported,
    RoundId,
    SendPull,
    StopAll,
    Tick,
    Wake,
)
from atoll_runtime.sync.grace import Ema, Timing, grace
from atoll_runtime.sync.rules import Rules
from atoll_runtime.sync.units import Unit

HISTORY = 4
"""Versions of each fragment that are remembered: a contribution's anchor must be one of them."""


@dataclass
class Round:
    """A round in flight."""

    id: RoundId
    opened: float
    expires: float
    stage: Literal["Collecting", "Merging", "Writing"] = "Collecting"
    contributions: Contributions = field(default_factory=Contributions)
    grace_until: float | None = None
    """Set when the quorum is met."""
    members: tuple[Member, ...] = ()
    frozen: float = 0.0
    pulled: set[tuple[str, int]] = field(default_factory=set)
    """(unit, incarnation) asked so far."""
    declined: set[str] = field(default_factory=set)
    """Units whose answer was not taken: not waited for any more."""


@dataclass
class Syncer:
    """One run's protocol state. `handle` is its only way to change."""

    rules: Rules
    sizes: tuple[int, ...]
    """Elements of each fragment."""
    versions: list[int]
    step: int = 0
    """The clock t: the last global step launched."""
    units: dict[str, Unit] = field(default_factory=dict)
    rounds: dict[RoundId, Round] = field(default_factory=dict)
    history: list[list[int]] = field(default_factory=list)
    merges: int = 0
    last_quorum: str = ""
    final: str = ""
    """URI of the final cut; not empty once finished."""
    interval: Ema = field(default_factory=lambda: Ema(0.1))
    """Inner steps between two merges of the same fragment, as measured."""
    timing: Timing = field(default_factory=Timing)
    _next: float = 0.0
    """When the clock may advance again."""
    _finishing: bool = False
    _effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.versions) != self.rules.fragments or len(self.sizes) != self.rules.fragments:
            raise ValueError(
                f"outer.fragments: {self.rules.fragments}, but the state holds {len(self.versions)} versions"
            )
        self.history = self.history or [[version] for version in self.versions]
        self.step = max(self.step, *self.versions)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """What to do about `event`; effects are carried out in their order."""
        self._effects = []
        match event:
            case Joined():
                self._joined(event)
            case Left():
                if event.unit in self.units:
                    self.units[event.unit].leave(event)
                    self._note("left", unit=event.unit, incarnation=event.incarnation, host=event.host)
            case Reported():
                if event.unit in self.units:
                    self.units[event.unit].report(event, now)
            case Part():
                self._part(event, now)
            case Declined():
                self._decline(event.part, event.why)
            case Merged():
                self._merged(event)
            case MergeFailed():
                self._discard(event.round, event.reason)
            case Persisted():
                self._persisted(event.round, now)
            case FinalCut():
                self.final = event.uri
                self._note("finished", uri=event.uri)
                self._effects += [Remember(self.record()), StopAll(self.step)]
            case Tick():
                pass
        if not self.final:
            self._advance(now)
        return self._effects

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty when it is."""
        unit, held = self.units.get(part.unit), self.rounds.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            return f"incarnation {part.incarnation} of {part.unit} is not the current one"
        if held is None or held.stage != "Collecting":
            return f"the round of {part.round} is over"
        p = part.round.fragment
        stale = anchors.unusable(
            part.anchor, part.round.step, self.history[p], unit.spent.get(p), self.rules.interval
        )
        if stale:
            return f"fragment {p}: {stale}"
        if part.hosts != unit.hosts_wanted or part.padded < self.sizes[p]:
            return f"part of {part.hosts} hosts, {part.padded} elements: {self.sizes[p]} elements are wanted"
        return held.contributions.admit(part)

    def live(self, now: float) -> list[Unit]:
        """Units that can contribute now, by name."""
        return [
            self.units[name] for name in sorted(self.units) if self.units[name].live(now, self.rules.silence)
        ]

    @property
    def tokens(self) -> int:
        """Tokens merged: a token counts when each of the P fragments has it."""
        return sum(unit.merged_tokens for unit in self.units.values()) // self.rules.fragments

    @property
    def finishing(self) -> bool:
        """The target is reached: no new rounds."""
        steps, tokens = self.rules.target_steps, self.rules.target_tokens
        return (steps is not None and self.step >= steps) or (tokens is not None and self.tokens >= tokens)

    def decide(self, held: Round, now: float) -> quorum.Ready | quorum.Waiting | quorum.Expired:
        """What a collecting round should do now."""
        contributed = held.contributions.members
        awaited = [
            unit.name
            for unit in self.live(now)
            if unit.name not in contributed and unit.name not in held.declined
        ]
        nobody_left = not awaited and (self.finishing or bool(held.declined))
        return quorum.decide(
            contributed,
            awaited,
            minimum=self.rules.quorum,
            grace_until=held.grace_until,
            expires=now if nobody_left else held.expires,
            now=now,
        )

    def record(self) -> dict[str, Any]:
        """Everything small that must survive a restart, JSON types only."""
        return {
            "step": self.step,
            "versions": list(self.versions),
            "history": [list(versions) for versions in self.history],
            "merges": self.merges,
            "last_quorum": self.last_quorum,
            "final": self.final,
            "units": {name: unit.record() for name, unit in self.units.items()},
        }

    @classmethod
    def restore(cls, rules: Rules, sizes: tuple[int, ...], record: Mapping[str, Any]) -> Syncer:
        """The machine as `record` left it: no host connected, no round in flight."""
        return cls(
            rules,
            sizes,
            versions=list(record["versions"]),
            step=record["step"],
            units={name: Unit.restore(name, state) for name, state in record["units"].items()},
            history=[list(versions) for versions in record["history"]],
            merges=record["merges"],
            last_quorum=record["last_quorum"],
            final=record["final"],
        )

    def _joined(self, event: Joined) -> None:
        unit = self.units.setdefault(event.unit, Unit(event.unit))
        if event.incarnation < unit.incarnation:
            self._effects.append(Evict(event.unit, unit.incarnation))
            return
        if unit.join(event, self.step):
            for held in self.rounds.values():
                if held.stage == "Collecting" and held.contributions.drop(event.unit):
                    unit.dropped += 1
                    if len(held.contributions.members) < self.rules.quorum:
                        held.grace_until = None
                    self._effects.append(Release(held.id, event.unit))
            self._effects += [Evict(event.unit, event.incarnation), Remember(self.record())]
        self._note("joined", unit=event.unit, incarnation=event.incarnation, host=event.host)
        for held in self.rounds.values():  # a host that connects again may have missed the pull
            if held.stage == "Collecting" and not held.contributions.has(event.unit, event.host):
                held.pulled.discard((event.unit, event.incarnation))

    def _part(self, part: Part, now: float) -> None:
        refusal = self.admit(part)
        held = self.rounds.get(part.round)
        if held is None or refusal:
            self._decline(part, refusal)
            return
        disagreement = held.contributions.add(part)
        if disagreement:
            self._effects.append(Release(part.round, part.unit))
            self._decline(part, disagreement)
        if held.grace_until is None and len(held.contributions.members) >= self.rules.quorum:
            self.timing.quorum.add(now - held.opened)
            held.grace_until = now + self._grace(now)

    def _decline(self, part: Part, why: str) -> None:
        unit, held = self.units.get(part.unit), self.rounds.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            return
        unit.dropped += 1
        self._note("dropped", unit=part.unit, round=str(part.round), why=why)
        if held is not None and not held.contributions.has(part.unit, part.host):
            held.declined.add(part.unit)

    def _merged(self, event: Merged) -> None:
        held = self.rounds[event.round]
        p = event.round.fragment
        self.versions[p] = event.round.step
        self.history[p] = [*self.history[p], event.round.step][-HISTORY:]
        self.merges += 1
        for member in held.members:
            steps = self.units[member.unit].merged(event.round, member, event.time)
            if steps is not None:
                self.interval.add(steps)
        held.stage = "Writing"
        self._effects += [Release(event.round, None), Persist(event.round, self.record())]

    def _persisted(self, round_id: RoundId, now: float) -> None:
        held = self.rounds.pop(round_id)
        self.timing.sync.add(now - held.frozen)
        self._effects.append(Publish(round_id.fragment, round_id.step))

    def _discard(self, round_id: RoundId, why: str) -> None:
        held = self.rounds.pop(round_id)
        for name in held.contributions.units:
            self.units[name].dropped += 1
        self._note("discarded", round=str(round_id), units=sorted(held.contributions.units), why=why)
        self._effects.append(Release(round_id, None))

    def _advance(self, now: float) -> None:
        for held in list(self.rounds.values()):
            if held.stage == "Collecting":
                self._progress(held, now)
        self._launch(now)
        wakes = [
            held.grace_until or held.expires for held in self.rounds.values() if held.stage == "Collecting"
        ]
        for unit in self.live(now):
            wakes.append((unit.reported or now) + unit.silence(self.rules.silence) + 0.001)
        if self._next > now and not self.finishing:
            wakes.append(self._next)
        if wakes:
            self._effects.append(Wake(max(min(wakes), now)))
        if self.finishing and not self.rounds and not self._finishing:
            self._finishing = True
            self._note("finishing", step=self.step)
            self._effects.append(Finish(self.step))

    def _progress(self, held: Round, now: float) -> None:
        decision = self.decide(held, now)
        if isinstance(decision, quorum.Ready):
            held.stage, held.frozen = "Merging", now
            held.members = tuple(
                held.contributions.members[name] for name in sorted(held.contributions.members)
            )
            self.last_quorum = f"{len(held.members)}/{len(self.units)} (K={self.rules.quorum})"
            weights = {
                member.unit: [member.incarnation, member.weight, member.anchor] for member in held.members
            }
            self._note("merge", round=str(held.id), members=weights)
            self._effects.append(Merge(held.id, held.members))
        elif isinstance(decision, quorum.Expired):
            self._discard(held.id, decision.why)
            if not self.finishing:
                self._open(RoundId(held.id.step, held.id.fragment, held.id.attempt + 1), now)
        else:
            self._pull(held, now)

    def _launch(self, now: float) -> None:
        """Advances the clock by a step when the slowest live unit has had time for one (so real H ≈ H)."""
        live = self.live(now)
        if self.finishing or len(live) < self.rules.quorum or now < self._next:
            return
        p = schedule.due(self.step + 1, self.rules.fragments, self.rules.interval)
        if p is not None and (
            len(self.rounds) >= self.rules.overlap
            or any(held.id.fragment == p for held in self.rounds.values())
        ):
            return
        pace = self._pace(live)
        self._next = max(self._next, now - pace) + pace
        self.step += 1
        if p is not None:
            self._open(RoundId(self.step, p, 0), now)

    def _open(self, round_id: RoundId, now: float) -> None:
        patience = max(self.rules.patience, 10 * self._pace(self.live(now))) * min(2**round_id.attempt, 8)
        held = self.rounds[round_id] = Round(round_id, now, now + patience)
        self._note("opened", round=str(round_id))
        self._pull(held, now)

    def _pull(self, held: Round, now: float) -> None:
        for unit in self.live(now):
            if (unit.name, unit.incarnation) not in held.pulled:
                held.pulled.add((unit.name, unit.incarnation))
                p = held.id.fragment
                least = anchors.least(held.id.step, self.history[p], unit.spent.get(p), self.rules.interval)
                self._effects.append(SendPull(held.id, unit.name, least))

    def _pace(self, live: list[Unit]) -> float:
        return max((unit.pace.value or 0.0 for unit in live), default=0.0)

    def _grace(self, now: float) -> float:
        return grace(
            self._pace(self.live(now)),
            self.timing.quorum.value or 0.0,
            self.timing.sync.value or 0.0,
            overlap_steps=self.rules.overlap * self.rules.interval / self.rules.fragments,
            fraction=self.rules.grace_fraction,
            max_steps=self.rules.grace_steps,
        )

    def _note(self, what: str, **facts: object) -> None:
        self._effects.append(Note({"event": what, "t": self.step, **facts}))

"""Rounds in flight: opened, headers collected, membership frozen, bodies received, merged, durable; or discarded."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from atoll_runtime.sync import anchors, claims, membership, quorum
from atoll_runtime.sync.effects import Effect, Exclude, Merge, Persist, Publish, Release, SendPull, note
from atoll_runtime.sync.events import Joined, Merged, Offered, Part, Received
from atoll_runtime.sync.grace import Ema, Timing, grace
from atoll_runtime.sync.identifiers import RoundId
from atoll_runtime.sync.norms import Norms
from atoll_runtime.sync.roster import Roster
from atoll_runtime.sync.round import Round
from atoll_runtime.sync.rules import MOST_STALE_INTERVALS, Rules
from atoll_runtime.sync.units import HISTORY, Unit

LEAST_REST = 0.1
"""Seconds, or the slowest unit's step where that is longer: doubles with each attempt whose answers were not taken."""
MOST_DOUBLINGS = 10


@dataclass
class Rounds:
    """The rounds of one shard, and what they need to know. Effects are appended to `effects`."""

    rules: Rules
    sizes: tuple[int, ...]
    """Elements of each fragment; 0 where the shard owns nothing of it."""
    versions: list[int]
    lineage: str = ""
    """Names the history that the versions belong to."""
    units: dict[str, Unit] = field(default_factory=dict)
    history: list[list[int]] = field(default_factory=list)
    capacity: float = math.inf
    """Elements of contributions for which there is memory."""
    widths: list[int] = field(default_factory=list)
    """Elements of a unit's contribution to each fragment, with its padding where that is known."""
    held: dict[RoundId, Round] = field(default_factory=dict)
    merges: int = 0
    last_quorum: str = ""
    interval: Ema = field(default_factory=lambda: Ema(0.1))
    """Inner steps between two merges of the same fragment, as measured."""
    timing: Timing = field(default_factory=Timing)
    ending: bool = False
    """The target is reached: no new rounds."""
    seconds: float = 0.0
    """Of an inner step of the slowest live unit, as shard 0 tells a shard to which units do not report."""
    quickest: float = 0.0
    """The same of the shortest one."""
    norms: list[Norms] = field(default_factory=list)
    """Of each fragment: those merged lately."""
    since: list[dict[int, float]] = field(default_factory=list)
    """Of each fragment: when the rounds of its versions were opened, where that was in this process."""
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.versions) != self.rules.fragments or len(self.sizes) != self.rules.fragments:
            raise ValueError(
                f"outer.fragments: {self.rules.fragments}, but the state holds {len(self.versions)} versions"
            )
        self.history = self.history or [[version] for version in self.versions]
        self.widths = self.widths or list(self.sizes)
        self.norms = self.norms or [Norms() for _ in self.sizes]
        self.since = self.since or [{} for _ in self.sizes]

    @cached_property
    def roster(self) -> Roster:
        """Who lives and who is waited for, as of the last event."""
        collecting = (held for held in self.held.values() if held.stage == "Collecting")
        return Roster(self.rules, self.units.values(), collecting)

    @property
    def slowest(self) -> float:
        """Seconds of an inner step of the slowest live unit that sets the pace of the run."""
        return self.roster.slowest or self.seconds

    @property
    def fastest(self) -> float:
        """Seconds of the shortest step of a live unit; 0 while it is not known."""
        return self.roster.fastest or self.quickest

    @property
    def interval_seconds(self) -> float:
        """Seconds between two rounds of a fragment at that pace; 0 while it is not known."""
        return self.rules.interval * self.slowest

    @cached_property
    def tokens(self) -> int:
        """Token-fragments merged, of all units. Only a merge changes it."""
        return sum(unit.account.merged for unit in self.units.values())

    def live(self, now: float) -> list[Unit]:
        """Units that can contribute now, by name: for who asks between two events."""
        silence = self.rules.silent_after
        return [unit for _, unit in sorted(self.units.items()) if unit.live(now, silence)]

    def awaited(self, held: Round, now: float) -> list[str]:
        """Live units that may still contribute to a round, by name: for who asks between two events."""
        return [unit.name for unit in self.live(now) if not held.answered(unit.name)]

    def look(self, name: str, now: float) -> None:
        """An event was of this unit."""
        unit = self.units.get(name)
        if unit is not None:
            self.roster.look(unit, now)

    def hush(self, silent: Mapping[str, int], now: float) -> None:
        """Shard 0 tells which units are silent: nothing is awaited of them. Those that are back are asked."""
        for name, unit in self.units.items():
            unit.hushed = silent.get(name) == unit.incarnation
            self.roster.look(unit, now)
        for held in self.held.values():
            if held.stage == "Collecting":
                self._pull(held, (unit for _, unit in sorted(self.roster.live.items())))

    def room(self, p: int) -> bool:
        """A round of fragment `p` may be opened: none in flight is of `p`, and fewer than τ are at work. One that only
        waits for its members' links is not; it takes memory."""
        if any(held.id.fragment == p for held in self.held.values()):
            return False
        busy = sum(held.stage != "Receiving" for held in self.held.values())
        elements = sum(self.widths[q] for q in (p, *(held.id.fragment for held in self.held.values())))
        fits = elements * len(self.roster.live) <= self.capacity
        return busy < self.rules.overlap and (fits or len(self.held) < self.rules.overlap)

    def open(self, round_id: RoundId, now: float) -> None:
        """Asks every live unit for its contribution."""
        slowest = self.slowest
        patience = max(self.rules.patience, 10 * slowest) * min(2**round_id.attempt, 8)
        # At once after a first answer that was not taken; units whose hosts disagree would answer the same for ever.
        rest = max(slowest, LEAST_REST) * (2 ** min(round_id.attempt, MOST_DOUBLINGS) - 1)
        held = self.held[round_id] = Round(round_id, now, now + patience, now + min(rest, patience))
        self.roster.open(held)
        self.effects.append(note("opened", round=str(round_id)))
        self._pull(held, (unit for _, unit in sorted(self.roster.live.items())))

    def progress(self, now: float, name: str) -> None:
        """Takes every round as far as it can go now.

        Args:
            name: of the unit that the event was of: every other one that lives was asked before. Empty: of none.
        """
        for held in list(self.held.values()):
            if held.stage == "Collecting":
                self._collect(held, name, now)
            if held.stage == "Receiving":
                self._receive(held, now)

    def decide(
        self, held: Round, awaited: Collection[str], now: float
    ) -> quorum.Ready | quorum.Waiting | quorum.Expired:
        """What a collecting round should do now, with these units awaited."""
        expires = held.expires
        if not awaited and self.ending:
            expires = now
        elif not awaited and held.declined:
            expires = held.rests
        return quorum.decide(
            held.contributions.members,
            awaited,
            minimum=self.rules.quorum,
            grace_until=held.grace_until,
            expires=expires,
            now=now,
        )

    def wakes(self, now: float) -> list[float]:
        """When rounds must be looked at again."""
        wakes = []
        for held in self.held.values():
            if held.stage == "Collecting":
                wakes.append(held.expires if held.grace_until is None else held.grace_until)
                if held.declined and held.rests > now:
                    wakes.append(held.rests)
            elif held.stage == "Receiving":
                wakes += [held.deadlines[name] for name in held.contributions.lacking] or [held.rests]
        return wakes

    def admit(self, part: Part) -> str:
        """Why a body is not wanted now; empty when it is."""
        unit, held = self.units.get(part.unit), self.held.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            return f"incarnation {part.incarnation} of {part.unit} is not the current one"
        if held is None or held.stage not in ("Collecting", "Receiving"):
            return f"the round of {part.round} is over"
        if held.contributions.header(part.unit, part.host) == part:
            known = (part.unit, part.host) in held.contributions.bodies
            return f"the part of host {part.host} is in already" if known else ""
        if held.stage == "Receiving":
            return f"membership of the round of {part.round} is frozen"
        return self._refusal(held, unit, part)

    def _refusal(self, held: Round, unit: Unit, part: Part) -> str:
        """Why a header is not taken while headers are collected; empty when it is."""
        p = part.round.fragment
        stale = anchors.unusable(part.anchor, part.round.step, self.history[p], *self._limits(unit, p))
        if stale:
            return f"fragment {p}: {stale}"
        if part.hosts != unit.hosts_wanted or part.padded < self.sizes[p]:
            return f"part of {part.hosts} hosts, {part.padded} elements: {self.sizes[p]} elements are wanted"
        return held.contributions.admit(part) or unit.disputed(part)

    def offer(self, event: Offered, now: float) -> None:
        """A header. The push that follows says the same again: whichever comes first counts."""
        part, held = event.part, self.held.get(event.part.round)
        if held is not None and held.contributions.header(part.unit, part.host) == part:
            return
        self._measure(event)
        refusal = self.admit(part)
        if held is None or refusal:
            self.decline(part, refusal)
            return
        impossible = self._impossible(part, now)
        if impossible:
            self._refuse(held, part.unit, part.anchor, impossible)
            return
        disagreement = held.contributions.add(part)
        if disagreement:
            self.decline(part, disagreement)
            return
        self.units[part.unit].account.advance(part.trained)
        p = part.round.fragment
        self.widths[p] = max(self.widths[p], part.padded)
        expected, rules = event.seconds, self.rules
        if len(held.contributions.parts[part.unit]) > 1:
            expected = max(expected, held.expected[part.unit])
        held.expected[part.unit] = expected
        held.deadlines[part.unit] = membership.deadline(now, expected, rules.patience, rules.transfer)
        if held.grace_until is None and len(held.contributions.members) >= rules.quorum:
            self.timing.quorum.add(now - held.opened)
            held.grace_until = now + self._grace()

    def _measure(self, event: Offered) -> None:
        """Takes what a header tells of its unit's link."""
        unit, interval = self.units.get(event.part.unit), self.interval_seconds
        if unit is not None and event.part.incarnation == unit.incarnation and event.seconds and interval:
            unit.turn = event.seconds * self.rules.fragments / interval

    def take(self, event: Received, now: float) -> None:
        """A body is here; declined when it is not wanted any more."""
        part = event.part
        refusal, held = self.admit(part), self.held.get(part.round)
        if held is None or refusal:
            self.decline(part, refusal)
            return
        if not math.isfinite(event.square):
            self._refuse(held, part.unit, part.anchor, "norm: the outer gradient is not finite")
            return
        self.offer(Offered(part), now)
        if held.contributions.header(part.unit, part.host) == part:
            held.contributions.bodies[part.unit, part.host] = event.square

    def decline(self, part: Part, why: str) -> None:
        """Counts a part that is not taken; its unit goes on without this round."""
        unit, held = self.units.get(part.unit), self.held.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            self.effects.append(note("fenced", unit=part.unit, incarnation=part.incarnation))
            return
        if held is None or held.stage not in ("Collecting", "Receiving"):
            self._dropped(part.unit, part.round, why)
            return
        known, contributions = held.contributions.header(part.unit, part.host), held.contributions
        newer = known is not None and known != part and known.trained >= part.trained
        if newer or (part.unit, part.host) in contributions.bodies or contributions.outrun(part):
            self._dropped(part.unit, part.round, why)  # another part of this host is in, or will come
        else:
            self._exclude(held, part.unit, why)

    def joined(self, event: Joined, renewed: bool) -> None:
        """A host is there: what an older incarnation sent is forgotten. A pull that it may have missed is sent again to
        all hosts of its unit, for they answer together or not at all."""
        for held in self.held.values():
            if held.stage not in ("Collecting", "Receiving"):
                continue
            if renewed and event.unit in held.contributions.parts:
                self._exclude(held, event.unit, f"incarnation {event.incarnation} has taken its place")
            if renewed:
                held.declined.discard(event.unit)
            if (event.unit, event.host) not in held.contributions.bodies:
                held.pulled.discard((event.unit, event.incarnation))

    def _impossible(self, part: Part, now: float) -> str:
        """Why what a header claims cannot be; empty when it can, or is not looked at."""
        if not self.rules.guard:
            return ""
        p = part.round.fragment
        newest, elapsed = self.units[part.unit].latest(p), MOST_STALE_INTERVALS * self.interval_seconds
        if newest is not None:
            elapsed = now - self.since[p].get(newest, -math.inf)
        return claims.impossible(
            part.steps,
            part.tokens,
            step_tokens=claims.step_tokens(self.rules.step_tokens, part.unit),
            elapsed=elapsed,
            fastest=self.fastest,
        )

    def _screen(self, held: Round) -> None:
        """Refuses members whose norms are outliers."""
        if not self.rules.guard:
            return
        contributions = held.contributions
        units = len({*self.roster.live, *contributions.members})
        for name, why in self.norms[held.id.fragment].outliers(contributions.levels, units).items():
            self._refuse(held, name, contributions.members[name].anchor, why)

    def _refuse(self, held: Round, name: str, anchor: int, why: str) -> None:
        """A contribution is wrong in itself: its unit goes on without this round, from the next version."""
        self.units[name].refuse(held.id.fragment, anchor)
        self.effects.append(
            note("refused", unit=name, fragment=held.id.fragment, round=str(held.id), why=why)
        )
        self._exclude(held, name, why)

    def merged(self, event: Merged, now: float) -> Round:
        """Books a merge that is computed. It counts once it is durable."""
        held, p = self.held[event.round], event.round.fragment
        before = self.versions[p]
        self.versions[p] = event.round.step
        self.history[p] = [*self.history[p], event.round.step][-HISTORY:]
        self.since[p] = {version: at for version, at in self.since[p].items() if version in self.history[p]}
        self.since[p][event.round.step] = held.opened
        self.norms[p].accept(list(held.levels.values()))
        self.merges += 1
        for member in held.members:
            steps = self.units[member.unit].merged(event.round, member, event.time)
            if steps is not None:
                self.interval.add(steps)
        vars(self).pop("tokens", None)  # to be counted anew
        self.effects.append(note("merged", round=str(held.id), before=before))
        held.stage = "Writing"
        return held

    def write(self, held: Round, record: Mapping[str, Any]) -> None:
        """Hands a booked merge to the disk."""
        held.record = record
        self.effects += [Release(held.id, None), Persist(held.id, record)]

    def persisted(self, round_id: RoundId, now: float) -> Mapping[str, Any]:
        """The merge is durable: everyone may have it. Gives the record that was written with it."""
        held = self.held.pop(round_id)
        self.timing.sync.add(now - held.frozen)
        p, step = round_id.fragment, round_id.step
        connected = {name: unit for name, unit in self.units.items() if unit.hosts}
        needed = tuple(name for name, unit in connected.items() if self.least(unit, p, step) >= step)
        self.effects.append(Publish(p, step, needed))
        return held.record

    def discard(self, round_id: RoundId, why: str) -> None:
        """Gives a round up, whole."""
        held = self.held.pop(round_id)
        self.roster.close(round_id)
        for member in held.members:
            self.units[member.unit].account.thaw(round_id.fragment)
        for name in held.contributions.units:
            self.units[name].dropped += 1
        self.effects.append(
            note("discarded", round=str(round_id), units=sorted(held.contributions.units), why=why)
        )
        self.effects.append(Release(round_id, None))

    def close(self, why: str) -> None:
        """Gives up every round whose merge has not begun."""
        for held in list(self.held.values()):
            if held.stage in ("Collecting", "Receiving"):
                self.discard(held.id, why)

    def least(self, unit: Unit, p: int, step: int) -> int:
        """The oldest version of fragment `p` that a contribution of this unit at `step` may be taken against."""
        return anchors.least(step, self.history[p], *self._limits(unit, p))

    def _limits(self, unit: Unit, p: int) -> tuple[int | None, int, int]:
        """What bounds a unit's anchors of fragment `p`."""
        return unit.latest(p), self.rules.oldest(unit.turn), unit.spoiled.get(p, -1)

    def leasts(self, unit: Unit, step: int) -> tuple[int, ...]:
        """The same of every fragment."""
        return tuple(self.least(unit, p, step) for p in range(self.rules.fragments))

    def _collect(self, held: Round, name: str, now: float) -> None:
        decision = self.decide(held, self.roster.awaited[held.id], now)
        if isinstance(decision, quorum.Ready):
            self._close(held)
        elif isinstance(decision, quorum.Expired):
            self._again(held, decision.why, now)
        elif name in self.roster.live:
            self._pull(held, (self.roster.live[name],))

    def _close(self, held: Round) -> None:
        """Freezes membership."""
        held.stage = "Receiving"
        self.roster.close(held.id)
        contributions, limit = held.contributions, self.interval_seconds
        expected = {name: held.expected[name] for name in contributions.members}
        members = membership.choose(expected, self.rules.quorum, limit or math.inf)
        for name in sorted(set(contributions.units) - set(members)):
            why = (
                f"it needs {expected[name]:.0f} s, an interval has {limit:.0f}"
                if name in expected
                else "late"
            )
            self._exclude(held, name, why)
        self.effects.append(Exclude(held.id, tuple(members)))

    def _receive(self, held: Round, now: float) -> None:
        """Drops members whose bodies do not come; merges the others once theirs are here."""
        contributions = held.contributions
        for name in contributions.lacking:
            if name not in self.roster.live:
                self._exclude(held, name, "it has left or is silent, and its body is not here")
            elif now >= held.deadlines[name]:
                self._exclude(held, name, f"its body was expected within {held.expected[name]:.0f} s")
        if len(contributions.members) >= self.rules.quorum and not contributions.lacking:
            self._screen(held)
        if len(contributions.members) < self.rules.quorum:
            if now >= held.rests:
                self._again(held, quorum.short(len(contributions.members), self.rules.quorum), now)
        elif not contributions.lacking:
            self._freeze(held, now)

    def _again(self, held: Round, why: str, now: float) -> None:
        """Discards an attempt, and opens the next one."""
        self.discard(held.id, why)
        if not self.ending:
            self.open(replace(held.id, attempt=held.id.attempt + 1), now)

    def _exclude(self, held: Round, name: str, why: str) -> None:
        """A unit goes on without this round, and loses nothing by it."""
        held.contributions.drop(name)
        held.declined.add(name)
        if len(held.contributions.members) < self.rules.quorum:
            held.grace_until = None
        self.effects.append(Release(held.id, name))
        self._dropped(name, held.id, why)

    def _dropped(self, name: str, round_id: RoundId, why: str) -> None:
        self.units[name].dropped += 1
        self.effects.append(note("dropped", unit=name, round=str(round_id), why=why))

    def _freeze(self, held: Round, now: float) -> None:
        held.stage, held.frozen, held.levels = "Merging", now, held.contributions.levels
        members = held.contributions.members
        held.members = tuple(members[name] for name in sorted(members))
        self.last_quorum = f"{len(held.members)}/{len(self.units)} (K={self.rules.quorum})"
        for member in held.members:
            self.units[member.unit].freeze(held.id.fragment, member)
        spans = {
            m.unit: [m.incarnation, m.weight, m.anchor, m.trained - m.tokens, m.trained] for m in held.members
        }
        self.effects += [note("merge", round=str(held.id), members=spans), Merge(held.id, held.members)]

    def _pull(self, held: Round, units: Iterable[Unit]) -> None:
        for unit in units:
            if (unit.name, unit.incarnation) not in held.pulled:
                held.pulled.add((unit.name, unit.incarnation))
                least = self.least(unit, held.id.fragment, held.id.step)
                self.effects.append(SendPull(held.id, unit.name, least))

    def _grace(self) -> float:
        return grace(
            self.slowest,
            self.timing.quorum.value or 0.0,
            self.timing.sync.value or 0.0,
            overlap_steps=self.rules.overlap * self.rules.interval / self.rules.fragments,
            fraction=self.rules.grace_fraction,
            max_steps=self.rules.grace_steps,
        )

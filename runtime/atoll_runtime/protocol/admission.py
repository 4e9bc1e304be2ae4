"""Which contributions the rounds of a shard take. A header is checked here, once; its body is only matched with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property

from atoll_runtime.protocol import claims
from atoll_runtime.protocol.effects import Effect, Release, note
from atoll_runtime.protocol.events import Offered, Part, Received
from atoll_runtime.protocol.grace import Ema, Timing
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.roster import Roster
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import MOST_STALE_INTERVALS, Rules
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.versions import Versions


@dataclass
class Admission:
    """What the rounds of a shard need to know, and the way in. Effects are appended to `effects`."""

    rules: Rules
    versions: list[Versions]
    """Of each fragment."""
    lineage: str = ""
    """Names the history that the versions belong to."""
    units: dict[str, Unit] = field(default_factory=dict)
    capacity: float = math.inf
    """Elements of contributions for which there is memory."""
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
    effects: list[Effect] = field(default_factory=list)

    @property
    def owned(self) -> tuple[int, ...]:
        """Fragments of which the shard owns a part."""
        return tuple(each.p for each in self.versions if each.size)

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

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty when it is."""
        unit, held = self.units.get(part.unit), self.held.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            return f"incarnation {part.incarnation} of {part.unit} is not the current one"
        if held is None or not held.open:
            return f"the round of {part.round} is over"
        if held.contributions.header(part.unit, part.host) == part:
            known = (part.unit, part.host) in held.contributions.bodies
            return f"the part of host {part.host} is in already" if known else ""
        if held.stage == "Receiving":
            return f"membership of the round of {part.round} is frozen"
        versions = self.versions[part.round.fragment]
        stale = versions.unusable(part.anchor, unit, part.round.step, self.rules)
        if stale:
            return f"fragment {versions.p}: {stale}"
        if part.hosts != unit.hosts_wanted or part.padded < versions.size:
            return f"part of {part.hosts} hosts, {part.padded} elements: {versions.size} elements are wanted"
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
        self._enter(held, part, event.seconds, now)

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
        if held.contributions.header(part.unit, part.host) != part:
            self._enter(held, part, 0.0, now)
        if held.contributions.header(part.unit, part.host) == part:
            held.contributions.bodies[part.unit, part.host] = event.square

    def _enter(self, held: Round, part: Part, seconds: float, now: float) -> None:
        """Takes a header that is wanted, unless what it says cannot be."""
        unit, versions, rules = self.units[part.unit], self.versions[part.round.fragment], self.rules
        impossible = self._impossible(part, unit, versions, now) if rules.guard else ""
        if impossible:
            self._refuse(held, part.unit, part.anchor, impossible)
            return
        disagreement = held.contributions.add(part)
        if disagreement:
            self.decline(part, disagreement)
            return
        unit.account.advance(part.trained)
        versions.width = max(versions.width, part.padded)
        held.expect(part, seconds, rules, now)
        self._grant(held, now)

    def _grant(self, held: Round, now: float) -> None:
        """Opens the grace window once K headers are in. There are fewer again when a unit's hosts answer anew."""
        if len(held.contributions.members) < self.rules.quorum:
            held.grace_until = None
        elif held.stage == "Collecting" and held.grace_until is None:
            self.timing.quorum.add(now - held.opened)
            held.grace_until = max(now + self.timing.grace(self.slowest, self.rules), held.rests)

    def _impossible(self, part: Part, unit: Unit, versions: Versions, now: float) -> str:
        """Why what a header claims cannot be; empty when it can."""
        newest = unit.latest(versions.p)
        elapsed = now - versions.since.get(part.anchor if newest is None else newest, -math.inf)
        if newest is None:
            # It may count steps that it made while a contribution was under way that was not merged.
            elapsed += MOST_STALE_INTERVALS * self.interval_seconds
        return claims.impossible(
            part.steps,
            part.tokens,
            step_tokens=claims.step_tokens(self.rules.step_tokens, part.unit),
            elapsed=elapsed,
            fastest=self.fastest,
        )

    def _measure(self, event: Offered) -> None:
        """Takes what a header tells of its unit's link."""
        unit, interval = self.units.get(event.part.unit), self.interval_seconds
        if unit is None or event.part.incarnation != unit.incarnation:
            return
        unit.round_trip = event.round_trip
        if interval:
            unit.laps = round(2 * event.round_trip / interval)
            unit.turn = event.seconds * self.rules.fragments / interval or unit.turn

    def decline(self, part: Part, why: str) -> None:
        """Counts a part that is not taken; its unit goes on without this round."""
        unit, held = self.units.get(part.unit), self.held.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            self.effects.append(note("fenced", unit=part.unit, incarnation=part.incarnation))
            return
        if held is None or not held.open:
            self._dropped(part.unit, part.round, why)
            return
        if held.contributions.supersedes(part):
            self._dropped(part.unit, part.round, why)  # another part of this host is in, or will come
        else:
            self._exclude(held, part.unit, why)

    def _refuse(self, held: Round, name: str, anchor: int, why: str) -> None:
        """A contribution is wrong in itself: its unit goes on without this round, from the next version."""
        unit = self.units[name]
        trusted = not unit.suspect
        unit.refuse(held.id.fragment, anchor, why)
        self.effects.append(
            note("refused", unit=name, fragment=held.id.fragment, round=str(held.id), why=why)
        )
        if trusted and unit.suspect:
            self.effects.append(note("suspect", unit=name, incarnation=unit.incarnation, why=unit.suspect))
        self._exclude(held, name, why)

    def _exclude(self, held: Round, name: str, why: str) -> None:
        """A unit goes on without this round, and loses nothing by it."""
        held.drop(name, self.rules.quorum)
        self.effects.append(Release(held.id, name))
        self._dropped(name, held.id, why)

    def _dropped(self, name: str, round_id: RoundId, why: str) -> None:
        self.units[name].dropped += 1
        self.effects.append(note("dropped", unit=name, round=str(round_id), why=why))

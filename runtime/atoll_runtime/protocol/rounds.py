"""A round from its headers to the announcement: the contributions that it takes, its membership, its merge.

A header is checked once, here. Its body is only matched with the header.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll_runtime.protocol import claims, norms
from atoll_runtime.protocol.clipping import weights
from atoll_runtime.protocol.effects import Merge, Persist, Publish, Release, note
from atoll_runtime.protocol.events import LinkTold, Merged, Received
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.ledger import Span
from atoll_runtime.protocol.messages import Header, Hello, Part
from atoll_runtime.protocol.opening import OpenRounds
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import COORDINATOR, MOST_STALE_INTERVALS
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.versions import Versions


@dataclass
class Rounds(OpenRounds):
    """The rounds of a shard, and what becomes of contributions to them."""

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty if it is."""
        unit, held = self.units.get(part.unit), self._round(part)
        if unit is None or part.incarnation != unit.incarnation:
            return f"incarnation {part.incarnation} of {part.unit} is not the current one"
        if held is None or not held.open:
            return f"the round of {part.round} is over"
        if held.contributions.header(part.unit, part.host) == part:
            known = part.host in held.contributions.bodies.get(part.unit, ())
            return f"the part of host {part.host} is in already" if known else ""
        if part.unit in held.declined:
            return f"{part.unit} was told to go on without the round of {part.round}"
        if held.stage == "Receiving" or held.id != part.round:
            return f"membership of the round of {part.round} is frozen"
        versions = self.versions[part.round.fragment]
        stale = versions.unusable(part.anchor, unit, part.round.step, self.rules)
        if stale:
            return f"fragment {versions.p}: {stale}"
        if part.hosts != unit.hosts_wanted or part.padded < versions.size:
            return f"part of {part.hosts} hosts, {part.padded} elements: {versions.size} elements are wanted"
        return held.contributions.admit(part) or unit.disputed(part)

    def offer(self, event: Header, now: float) -> None:
        """Takes a header. The push that follows repeats it; the first to come counts."""
        part, held = event.part, self._round(event.part)
        if held is not None and held.contributions.header(part.unit, part.host) == part:
            return
        self._measure(event)
        refusal = self.admit(part)
        if held is None or refusal:
            self.decline(part, refusal)
            return
        self._enter(held, part, event.seconds, now)

    def take(self, event: Received, now: float) -> None:
        """Takes a body, or declines it if it is not wanted any more."""
        part = event.part
        refusal, held = self.admit(part), self._round(part)
        if held is None or refusal:
            self.decline(part, refusal)
            return
        if not math.isfinite(event.square):
            self._refuse(held, part.unit, part.anchor, "norm: the outer gradient is not finite")
            return
        if held.contributions.header(part.unit, part.host) != part:
            self._enter(held, part, 0.0, now)
        if held.contributions.header(part.unit, part.host) == part:
            held.contributions.bodies.setdefault(part.unit, {})[part.host] = event.square

    def _round(self, part: Part) -> Round | None:
        """The round that has the unit's answer to the same pull, carried over or not. Otherwise the round that the part
        answers, if it is in flight."""
        for held in self.holding:
            if held.contributions.asked_by(part.unit) == part.round:
                return held
        return self.in_flight.get(part.round)

    def _enter(self, held: Round, part: Part, seconds: float, now: float) -> None:
        """Takes a header that is wanted, unless its claims are impossible."""
        unit, versions, rules = self.units[part.unit], self.versions[part.round.fragment], self.rules
        impossible = self._impossible(part, unit, versions, now) if rules.guard else ""
        if impossible and self.fastest and self._paced(unit):
            self._refuse(held, part.unit, part.anchor, impossible)
            return
        if impossible:  # until the paces of the run and the unit are known it may be true
            self.decline(part, impossible)
            return
        earlier = held.contributions.asked_by(part.unit)
        if earlier is not None and earlier != part.round:  # carried over: this replaces it
            self.effects.append(Release(earlier, part.unit))
        disagreement = held.contributions.add(part)
        if disagreement:
            self.decline(part, disagreement)
            return
        unit.account.advance(part.trained)
        versions.width = max(versions.width, part.padded)
        held.expect(part, seconds, rules, now)

    def _impossible(self, part: Part, unit: Unit, versions: Versions, now: float) -> str:
        """Why the claims of a header are impossible; empty if they are not."""
        newest = unit.included_in.get(versions.p)
        elapsed = self._since(versions.since.get(part.anchor if newest is None else newest, -math.inf), now)
        if newest is None:
            # The steps may include those during an earlier contribution that was not merged.
            elapsed += MOST_STALE_INTERVALS * self.interval_seconds or math.inf
        known, present = self.rules.step_tokens, self._since(unit.present_since, now)
        return claims.impossible(
            part.steps, part.tokens, known, part.unit, elapsed=elapsed, fastest=self.fastest
        ) or claims.untimely(part.trained, known, part.unit, present=present, fastest=self.fastest)

    def _paced(self, unit: Unit) -> bool:
        """Shard 0 knows the unit's pace, or has known those of all, so `fastest` is not that of slower units alone."""
        return bool(unit.pace.steady or self.quickest) if self.rules.shard == COORDINATOR else not unit.hushed

    def _since(self, at: float, now: float) -> float:
        """Seconds since `at`, which the clock of another machine may have shown: as many as there can be."""
        return now - at + (claims.CLOCK_SECONDS if at < self.away[1] else 0.0)

    def _measure(self, event: Header) -> None:
        """Takes what a header says about its host's link."""
        part, interval = event.part, self.interval_seconds
        unit = self.units.get(part.unit)
        if unit is None or (part.incarnation, part.hosts) != (unit.incarnation, unit.hosts_wanted):
            return
        unit.round_trips[part.host] = event.round_trip
        if interval and (turn := max(event.turn, event.seconds * self.rules.fragments / interval)):
            unit.link_is(part.host, turn)

    def slowed(self, event: LinkTold) -> None:
        """Takes what a request for a version says about its host's link: that it is slower than its headers say."""
        unit = self.units.get(event.unit)
        if unit is not None and event.incarnation == unit.incarnation and event.host < unit.hosts_wanted:
            unit.link_is(event.host, max(event.turn, unit.turns.get(event.host, 1.0)))

    def decline(self, part: Part, why: str) -> None:
        """Counts a part that is not taken. Its unit goes on without this round."""
        unit, held = self.units.get(part.unit), self._round(part)
        if unit is None or part.incarnation != unit.incarnation:
            self.effects.append(note("fenced", unit=part.unit, incarnation=part.incarnation))
            return
        gone = held is None or not held.open or part.unit in held.declined
        if held is None or gone or held.contributions.supersedes(part):
            self.dropped(part.unit, part.round, why)
        else:
            unit.repeated += bool(unit.disputed(part))
            self.exclude(held, part.unit, why)

    def joined(self, event: Hello, renewed: bool) -> None:
        """A host has joined. What an older incarnation sent is dropped. A pull that the host has not answered, and may
        have missed, is sent again to all hosts of its unit, because they answer together or not at all."""
        for held in self.holding:
            if not held.open:
                continue
            if renewed and event.unit in held.contributions.parts:
                self.exclude(held, event.unit, f"incarnation {event.incarnation} has taken its place")
            if held.contributions.header(event.unit, event.host) is None:
                held.declined.discard(event.unit)
                held.pulled.discard((event.unit, event.incarnation))

    def taking(self, unit: str, host: int) -> tuple[RoundId, ...]:
        """Rounds that have an answer of this host and have not begun to merge."""
        headers = [held.contributions.header(unit, host) for held in self.holding if held.open]
        return tuple(part.round for part in headers if part is not None)

    def progress(self, now: float, name: str) -> None:
        """Advances every round as far as possible now.

        Args:
            name: the unit of the event. Every other live unit was asked before. Empty: the event is of no unit.
        """
        for held in list(self.in_flight.values()):
            if held.stage == "Collecting":
                self._collect(held, name, now)
            if held.stage == "Receiving":
                self._receive(held, now)

    def hurry(self, p: int, now: float) -> None:
        """A round of fragment `p` is due. If only memory is missing for it, the oldest round with K bodies waits no
        longer for the others, so that no slow link slows the other units."""
        due = self._due
        if self._has_place(p) and not self._fits_beside(p, due) and all(held.open for held in due):
            for held in due:
                if held.stage == "Receiving" and held.complete:
                    held.enough = min(held.enough, now)
                    self._receive(held, now)
                    return

    def _collect(self, held: Round, name: str, now: float) -> None:
        self._grant(held, now)
        if now >= held.until(self.roster.awaited[held.id], self.ending):
            if held.quorate:
                self._close(held, now)
            else:
                self._again(held, f"{held.short} at the time-out", now)
        elif name in self.roster.live:
            self._pull(held, (self.roster.live[name],))

    def _close(self, held: Round, now: float) -> None:
        """Freezes membership."""
        self.roster.close(held.id)
        for name in held.close(self.punctual_seconds):
            self.exclude(held, name, "late")
        self.effects.append(Release(held.id, None, tuple(sorted(held.contributions.members))))

    def _receive(self, held: Round, now: float) -> None:
        """Drops members with bodies that do not come, and merges the others once their bodies are here. A body that
        comes too late is carried over, unless it is needed because one of K was wrong."""
        for name, why in held.overdue(self.roster.live, self.interval_seconds or math.inf, now).items():
            self.exclude(held, name, why)
        if held.complete and not held.awaits(now):
            self._screen(held)
            for name in held.contributions.lacking if held.complete else []:
                self.carry(held, name)
        if not held.quorate:
            if now >= held.rests:
                self._again(held, held.short, now)
        elif not held.contributions.lacking:
            self._merge(held, now)

    def _screen(self, held: Round) -> None:
        """Refuses members with norms that are outliers among the bodies that are here."""
        if not self.rules.guard:
            return
        contributions, versions = held.contributions, self.versions[held.id.fragment]
        units = set(contributions.members)
        if held.id.attempt < norms.ATTEMPTS:
            units |= {*self.roster.live, *versions.contributors(self.units.values())}
        for name, why in versions.norms.outliers(contributions.levels, units).items():
            self._refuse(held, name, contributions.members[name].anchor, why)

    def _merge(self, held: Round, now: float) -> None:
        held.stage, held.frozen = "Merging", now
        self.last_quorum = f"{len(held.members)}/{len(self.units)} (K={self.rules.quorum})"
        for member in held.members:
            span = Span(member.incarnation, member.begun, member.trained)
            self.units[member.unit].account.freeze(held.id.fragment, span)
        spans = {
            m.unit: [m.incarnation, weight, m.anchor, m.begun, m.trained]
            for m, weight in zip(held.members, weights(held.members, self.rules.guard), strict=True)
        }
        self.effects += [note("merge", round=str(held.id), members=spans), Merge(held.id, held.members)]

    def merged(self, event: Merged, now: float) -> Round:
        """Books a computed merge. It counts once it is durable."""
        held, versions = self.in_flight[event.round], self.versions[event.round.fragment]
        before = versions.current
        versions.merged(held)
        self.merges += 1
        for member in held.members:
            steps = self.units[member.unit].merged(event.round, member, now)
            if steps is not None:
                self.interval.add(steps)
        vars(self).pop("tokens", None)  # to be counted again
        self.effects.append(note("merged", round=str(held.id), before=before))
        held.stage = "Writing"
        return held

    def write(self, held: Round, record: Mapping[str, Any]) -> None:
        """Asks to write a booked merge to the disk."""
        held.record = record
        earlier = [Release(each.round, each.unit) for each in held.members if each.round != held.id]
        self.effects += [*earlier, self.over(held.id), Persist(held.id, record)]

    def persisted(self, round_id: RoundId, now: float) -> Mapping[str, Any]:
        """The merge is durable, so it is published. Returns the record that was written with it."""
        held = self.in_flight.pop(round_id)
        self.timing.sync.add(now - held.frozen)
        p, step = round_id.fragment, round_id.step
        due = step + self.rules.interval  # of the fragment's next round: when it opens, it is late to fetch
        versions = self.versions[p]
        leasts = {
            name: versions.least(unit, due, self.rules) for name, unit in self.units.items() if unit.hosts
        }
        self.effects.append(Publish(p, step, leasts))
        return held.record

    def _refuse(self, held: Round, name: str, anchor: int, why: str) -> None:
        """A contribution is wrong in itself. Its unit goes on without this round, from the next version."""
        unit = self.units[name]
        trusted = not unit.suspect
        unit.refuse(held.id.fragment, anchor, why)
        self.effects.append(
            note("refused", unit=name, fragment=held.id.fragment, round=str(held.id), why=why)
        )
        if trusted and unit.suspect:
            self.effects.append(note("suspect", unit=name, incarnation=unit.incarnation, why=unit.suspect))
        self.exclude(held, name, why)

"""Rounds in flight: opened, headers collected, membership frozen, bodies received, merged, durable; or discarded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from atoll_runtime.protocol import quorum
from atoll_runtime.protocol.admission import Admission
from atoll_runtime.protocol.effects import Exclude, Merge, Persist, Publish, Release, SendPull, note
from atoll_runtime.protocol.events import Joined, Merged
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.linkshare import spans
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.units import Unit


@dataclass
class Rounds(Admission):
    """The rounds of one shard."""

    @cached_property
    def tokens(self) -> int:
        """Token-fragments merged, of all units. Only a merge changes it."""
        return sum(unit.account.merged for unit in self.units.values())

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
        due = [held for held in self.held.values() if held.stage != "Early"]
        if any(held.id.fragment == p for held in due):
            return False
        busy = sum(held.stage != "Receiving" for held in due)
        return busy < self.rules.overlap and (self._fits(p) or len(due) < self.rules.overlap)

    def _fits(self, p: int) -> bool:
        """There is memory for a round of fragment `p`."""
        fragments = {p, *(held.id.fragment for held in self.held.values())}
        elements = sum(self.versions[q].width for q in fragments)
        return elements * len(self.roster.live) <= self.capacity

    def open(self, round_id: RoundId, now: float) -> None:
        """Asks every live unit for its contribution. What came early counts as if it had come a step later: units that
        are near have as much time as ever."""
        held = self.held.setdefault(round_id, Round(round_id))
        held.begin(now, self.rules.patience, self.slowest)
        self.roster.open(held)
        self.effects.append(note("opened", round=str(round_id)))
        self._pull(held, (unit for _, unit in sorted(self.roster.live.items())))
        self._grant(held, now + self.slowest)

    def leads(self) -> dict[str, int]:
        """Steps that far units are asked before a round's own step, by name: as many as a round trip takes."""
        step, most = self.slowest or math.inf, self.rules.interval - 1
        leads = {name: spans(unit.round_trip, step) for name, unit in self.roster.live.items()}
        return {name: min(lead, most) for name, lead in sorted(leads.items()) if lead}

    def ask(self, round_id: RoundId, far: Iterable[str]) -> None:
        """Asks these units for a round whose step is still to come."""
        p = round_id.fragment
        if round_id not in self.held:
            if not self._fits(p) or any(held.id.fragment == p for held in self.held.values()):
                return
            self.held[round_id] = Round(round_id)
        self._pull(self.held[round_id], (self.units[name] for name in far))

    def skip(self, step: int) -> None:
        """Gives up what units were asked for early whose step has passed without its round."""
        for held in list(self.held.values()):
            if held.stage == "Early" and (held.id.step <= step or self.ending):
                self.discard(held.id, "its step was skipped")

    def progress(self, now: float, name: str) -> None:
        """Takes every round as far as it can go now.

        Args:
            name: of the unit that the event was of: every other one that lives was asked before. Empty: of none.
        """
        if self.ending:
            self.skip(0)
        for held in list(self.held.values()):
            if held.stage == "Collecting":
                self._collect(held, name, now)
            if held.stage == "Receiving":
                self._receive(held, now)

    def wakes(self, now: float) -> list[float]:
        """When rounds must be looked at again."""
        return [wake for held in self.held.values() for wake in held.wakes(now)]

    def joined(self, event: Joined, renewed: bool) -> None:
        """A host is there: what an older incarnation sent is forgotten. A pull that it may have missed is sent again to
        all hosts of its unit, for they answer together or not at all."""
        for held in self.held.values():
            if not held.open:
                continue
            if renewed and event.unit in held.contributions.parts:
                self._exclude(held, event.unit, f"incarnation {event.incarnation} has taken its place")
            if renewed:
                held.declined.discard(event.unit)
            if (event.unit, event.host) not in held.contributions.bodies:
                held.pulled.discard((event.unit, event.incarnation))

    def _screen(self, held: Round) -> None:
        """Refuses members whose norms are outliers."""
        if not self.rules.guard:
            return
        contributions = held.contributions
        units = len({*self.roster.live, *contributions.members})
        for name, why in self.versions[held.id.fragment].norms.outliers(contributions.levels, units).items():
            self._refuse(held, name, contributions.members[name].anchor, why)

    def merged(self, event: Merged, now: float) -> Round:
        """Books a merge that is computed. It counts once it is durable."""
        held, versions = self.held[event.round], self.versions[event.round.fragment]
        before = versions.current
        versions.merged(held)
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
        needed = tuple(
            name for name, unit in connected.items() if self.versions[p].least(unit, step, self.rules) >= step
        )
        self.effects.append(Publish(p, step, needed))
        return held.record

    def discard(self, round_id: RoundId, why: str) -> None:
        """Gives a round up, whole."""
        held = self.held.pop(round_id)
        self.roster.close(round_id)
        for member in held.members:
            self.units[member.unit].account.thaw(round_id.fragment)
        for name in held.contributions.parts:
            self.units[name].dropped += 1
        self.effects.append(
            note("discarded", round=str(round_id), units=sorted(held.contributions.parts), why=why)
        )
        self.effects.append(Release(round_id, None))

    def close(self, why: str) -> None:
        """Gives up every round whose merge has not begun."""
        for held in list(self.held.values()):
            if held.open:
                self.discard(held.id, why)

    def leasts(self, unit: Unit, step: int) -> tuple[int, ...]:
        """The oldest version of each fragment that a contribution of this unit at `step` may be taken against."""
        return tuple(versions.least(unit, step, self.rules) for versions in self.versions)

    def _collect(self, held: Round, name: str, now: float) -> None:
        awaited = self.roster.awaited[held.id]
        decision = held.decide(awaited, self.rules.quorum, self.ending, now)
        if isinstance(decision, quorum.Ready):
            self._close(held)
        elif isinstance(decision, quorum.Expired):
            self._again(held, decision.why, now)
        elif name in self.roster.live:
            self._pull(held, (self.roster.live[name],))

    def _close(self, held: Round) -> None:
        """Freezes membership."""
        self.roster.close(held.id)
        for name, why in held.close(self.rules.quorum, self.interval_seconds or math.inf).items():
            self._exclude(held, name, why)
        self.effects.append(Exclude(held.id, tuple(sorted(held.contributions.members))))

    def _receive(self, held: Round, now: float) -> None:
        """Drops members whose bodies do not come; merges the others once theirs are here."""
        contributions = held.contributions
        for name, why in held.overdue(self.roster.live, now).items():
            self._exclude(held, name, why)
        if len(contributions.members) >= self.rules.quorum and not contributions.lacking:
            self._screen(held)
        if len(contributions.members) < self.rules.quorum:
            if now >= held.rests:
                self._again(held, quorum.short(len(contributions.members), self.rules.quorum), now)
        elif not contributions.lacking:
            self._merge(held, now)

    def _again(self, held: Round, why: str, now: float) -> None:
        """Discards an attempt, and opens the next one."""
        self.discard(held.id, why)
        if not self.ending:
            self.open(replace(held.id, attempt=held.id.attempt + 1), now)

    def _merge(self, held: Round, now: float) -> None:
        held.freeze(now)
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
                least = self.versions[held.id.fragment].least(unit, held.id.step, self.rules)
                self.effects.append(SendPull(held.id, unit.name, least))

"""Rounds in flight: opened, pulled, collected, frozen, merged, durable; or discarded whole and tried again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from atoll_runtime.sync import anchors, quorum
from atoll_runtime.sync.events import (
    Effect,
    Joined,
    Merge,
    Merged,
    Note,
    Part,
    Persist,
    Publish,
    Release,
    RoundId,
    SendPull,
    Upload,
)
from atoll_runtime.sync.grace import Ema, Timing, grace
from atoll_runtime.sync.roster import Roster
from atoll_runtime.sync.round import Round
from atoll_runtime.sync.rules import Rules
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
    held: dict[RoundId, Round] = field(default_factory=dict)
    merges: int = 0
    last_quorum: str = ""
    interval: Ema = field(default_factory=lambda: Ema(0.1))
    """Inner steps between two merges of the same fragment, as measured."""
    timing: Timing = field(default_factory=Timing)
    ending: bool = False
    """The target is reached: no new rounds."""
    effects: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        if len(self.versions) != self.rules.fragments or len(self.sizes) != self.rules.fragments:
            raise ValueError(
                f"outer.fragments: {self.rules.fragments}, but the state holds {len(self.versions)} versions"
            )
        self.history = self.history or [[version] for version in self.versions]

    @cached_property
    def roster(self) -> Roster:
        """Who lives and who is waited for, as of the last event."""
        collecting = (held for held in self.held.values() if held.stage == "Collecting")
        return Roster(self.rules.silence, self.units.values(), collecting)

    @cached_property
    def tokens(self) -> int:
        """Token-fragments merged, of all units. Only a merge changes it."""
        return sum(unit.account.merged for unit in self.units.values())

    def live(self, now: float) -> list[Unit]:
        """Units that can contribute now, by name: for who asks between two events."""
        silence = self.rules.silence
        return [unit for _, unit in sorted(self.units.items()) if unit.live(now, silence)]

    def awaited(self, held: Round, now: float) -> list[str]:
        """Live units that may still contribute to a round, by name: for who asks between two events."""
        return [unit.name for unit in self.live(now) if not held.answered(unit.name)]

    def look(self, name: str, now: float) -> None:
        """An event was of this unit."""
        unit = self.units.get(name)
        if unit is not None:
            self.roster.look(unit, now)

    def room(self, p: int) -> bool:
        """A round of fragment `p` may be opened: fewer than τ are in flight, none of `p`."""
        return len(self.held) < self.rules.overlap and all(
            held.id.fragment != p for held in self.held.values()
        )

    def open(self, round_id: RoundId, now: float) -> None:
        """Asks every live unit for its part."""
        slowest = self.roster.slowest
        patience = max(self.rules.patience, 10 * slowest) * min(2**round_id.attempt, 8)
        # At once after a first answer that was not taken; units whose hosts disagree would answer the same for ever.
        rest = max(slowest, LEAST_REST) * (2 ** min(round_id.attempt, MOST_DOUBLINGS) - 1)
        held = self.held[round_id] = Round(round_id, now, now + patience, now + min(rest, patience))
        self.roster.open(held)
        self.effects.append(note("opened", round=str(round_id)))
        self._pull(held, (unit for _, unit in sorted(self.roster.live.items())))

    def progress(self, now: float, name: str) -> None:
        """Takes every collecting round as far as it can go now.

        Args:
            name: of the unit that the event was of: every other one that lives was asked before. Empty: of none.
        """
        for held in list(self.held.values()):
            if held.stage != "Collecting":
                continue
            decision = self.decide(held, self.roster.awaited[held.id], now)
            if isinstance(decision, quorum.Ready):
                self._freeze(held, now)
            elif isinstance(decision, quorum.Expired):
                self.discard(held.id, decision.why)
                if not self.ending:
                    again = replace(held.id, attempt=held.id.attempt + 1)
                    self.open(again, now)
            elif name in self.roster.live:
                self._pull(held, (self.roster.live[name],))

    def decide(
        self, held: Round, awaited: Collection[str], now: float
    ) -> quorum.Ready | quorum.Waiting | quorum.Expired:
        """What a collecting round should do now, with these units awaited."""
        expires = self._expires(held, awaited)
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
        """When collecting rounds must be looked at again."""
        collecting = [held for held in self.held.values() if held.stage == "Collecting"]
        wakes = [
            self._expires(held, self.roster.awaited[held.id])
            if held.grace_until is None
            else held.grace_until
            for held in collecting
        ]
        return wakes + [held.rests for held in collecting if held.declined and held.rests > now]

    def admit(self, part: Part) -> str:
        """Why a part is not wanted now; empty when it is."""
        unit, held = self.units.get(part.unit), self.held.get(part.round)
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
        return held.contributions.admit(part) or unit.disputed(part)

    def upload(self, event: Upload) -> None:
        """A part's way begins, or has ended: after the part, where it came."""
        part = event.part
        unit, held, sender = self.units.get(part.unit), self.held.get(part.round), (part.unit, part.host)
        if held is None or unit is None or part.incarnation != unit.incarnation:
            return
        if event.under_way:
            held.arriving.append(sender)
        elif sender in held.arriving:
            held.arriving.remove(sender)

    def take(self, part: Part, now: float) -> None:
        """A part whose body is here; declined when it is not wanted any more."""
        refusal = self.admit(part)
        held = self.held.get(part.round)
        if held is None or refusal:
            self.decline(part, refusal)
            return
        disagreement = held.contributions.add(part)
        if disagreement:
            self.effects.append(Release(part.round, part.unit))
            self.decline(part, disagreement)
        if held.grace_until is None and len(held.contributions.members) >= self.rules.quorum:
            self.timing.quorum.add(now - held.opened)
            held.grace_until = now + self._grace()

    def decline(self, part: Part, why: str) -> None:
        """Counts a part that is not taken; its unit is not waited for in this round."""
        unit, held = self.units.get(part.unit), self.held.get(part.round)
        if unit is None or part.incarnation != unit.incarnation:
            self.effects.append(note("fenced", unit=part.unit, incarnation=part.incarnation))
            return
        unit.dropped += 1
        self.effects.append(note("dropped", unit=part.unit, round=str(part.round), why=why))
        if held is None or held.contributions.has(part.unit, part.host) or held.contributions.outrun(part):
            return  # another part of this host is in, or will come
        held.declined.add(part.unit)

    def joined(self, event: Joined, renewed: bool) -> None:
        """A host is there: what an older incarnation sent is forgotten. A pull that it may have missed is sent again to
        all hosts of its unit, for they answer together or not at all."""
        for held in self.held.values():
            if held.stage != "Collecting":
                continue
            if renewed and held.contributions.drop(event.unit):
                self.units[event.unit].dropped += 1
                if len(held.contributions.members) < self.rules.quorum:
                    held.grace_until = None
                self.effects.append(Release(held.id, event.unit))
            if renewed:
                held.declined.discard(event.unit)
                held.arriving = [sender for sender in held.arriving if sender[0] != event.unit]
            if not held.contributions.has(event.unit, event.host):
                held.pulled.discard((event.unit, event.incarnation))

    def merged(self, event: Merged) -> Round:
        """Books a merge that is computed. It counts once it is durable."""
        held, p = self.held[event.round], event.round.fragment
        before = self.versions[p]
        self.versions[p] = event.round.step
        self.history[p] = [*self.history[p], event.round.step][-HISTORY:]
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
        self.effects.append(Publish(round_id.fragment, round_id.step))
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
        """Gives up every round that still collects."""
        for held in list(self.held.values()):
            if held.stage == "Collecting":
                self.discard(held.id, why)

    def _expires(self, held: Round, awaited: Collection[str]) -> float:
        """When an attempt below quorum is given up. On a slow link a part may take longer than any attempt's patience,
        and would be sent again for ever."""
        arriving = any(unit in awaited for unit, _ in held.arriving)
        return held.expires + self.rules.transfer * arriving

    def _freeze(self, held: Round, now: float) -> None:
        held.stage, held.frozen = "Merging", now
        self.roster.close(held.id)
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
                p = held.id.fragment
                least = anchors.least(held.id.step, self.history[p], unit.spent.get(p), self.rules.interval)
                self.effects.append(SendPull(held.id, unit.name, least))

    def _grace(self) -> float:
        return grace(
            self.roster.slowest,
            self.timing.quorum.value or 0.0,
            self.timing.sync.value or 0.0,
            overlap_steps=self.rules.overlap * self.rules.interval / self.rules.fragments,
            fraction=self.rules.grace_fraction,
            max_steps=self.rules.grace_steps,
        )


def note(what: str, **facts: object) -> Note:
    """A line of the event tape."""
    return Note({"event": what, **facts})

"""Which rounds are open, who is asked for a contribution to them, and when one is given up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from atoll_runtime.protocol.effects import Effect, Release, SendPull, note
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.linkshare import spans
from atoll_runtime.protocol.pace import Ema, Timing
from atoll_runtime.protocol.roster import Roster
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.versions import Versions


@dataclass
class OpenRounds:
    """The rounds of a shard, and what they need to know. Effects are appended to `effects`."""

    rules: Rules
    versions: list[Versions]
    """Of each fragment."""
    series: str = ""
    """Names the life of the shard."""
    units: dict[str, Unit] = field(default_factory=dict)
    capacity: float = math.inf
    """Elements of contributions for which there is memory."""
    held: dict[RoundId, Round] = field(default_factory=dict)
    carried: dict[int, Round] = field(default_factory=dict)
    """By fragment, contributions whose bodies came too late for their round: they count in the fragment's next one."""
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

    @cached_property
    def owned(self) -> tuple[int, ...]:
        """Fragments of which the shard owns a part."""
        return tuple(each.p for each in self.versions if each.size)

    @property
    def holding(self) -> tuple[Round, ...]:
        """What has contributions: rounds in flight, and what waits for the next round of its fragment."""
        return (*self.held.values(), *self.carried.values())

    @cached_property
    def roster(self) -> Roster:
        """Who lives and who is waited for, as of the last event."""
        collecting = (held for held in self.held.values() if held.stage == "Collecting")
        return Roster(self.rules, self.units.values(), collecting)

    @cached_property
    def tokens(self) -> int:
        """Token-fragments merged, of all units. Only a merge changes it."""
        return sum(unit.account.merged for unit in self.units.values())

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

    def look(self, name: str, now: float) -> None:
        """An event was of this unit."""
        unit = self.units.get(name)
        if unit is not None:
            self.roster.look(unit, now)

    def leasts(self, unit: Unit, step: int) -> tuple[int, ...]:
        """The oldest version of each fragment that a contribution of this unit at `step` may be taken against."""
        return tuple(versions.least(unit, step, self.rules) for versions in self.versions)

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
        return elements * len(self.roster.live) + self._kept <= self.capacity

    @property
    def _kept(self) -> int:
        """Elements of what is carried over."""
        kept = self.carried.items()
        return sum(len(earlier.contributions.parts) * self.versions[p].width for p, earlier in kept)

    def open(self, round_id: RoundId, now: float) -> None:
        """Asks every live unit for its contribution. What came early, or was carried over, counts as if it had come a
        step later: units that are near have as much time as ever."""
        held = self.held.get(round_id) or self._make(round_id, now)
        self._make_room(round_id)
        held.begin(now, self.rules.patience, self.slowest)
        self.roster.open(held)
        self.effects.append(note("opened", round=str(round_id)))
        self._pull(held, (unit for _, unit in sorted(self.roster.live.items())))
        self._grant(held, now + self.slowest)

    def _make_room(self, round_id: RoundId) -> None:
        """More units may live than when others were asked early, or bodies carried over: those give way to what is
        due."""
        why = "a round that is due needs its memory"
        for held in list(self.held.values()):
            if held.stage == "Early" and held.id != round_id and not self._fits(round_id.fragment):
                self.discard(held.id, why)
        for p in list(self.carried):
            if not self._fits(round_id.fragment):
                self._abandon(p, why)

    def _grant(self, held: Round, now: float) -> None:
        """Of a round that collects: opens the grace window once K headers are in whose bodies come before the fragment
        is due again: a slow link that answers first does not hold the others up. There are fewer again when a unit's
        hosts answer anew."""
        interval, quorum = self.interval_seconds or math.inf, self.rules.quorum
        if len(held.contributions.members) < quorum:
            held.grace_until = None
        elif held.grace_until is None and held.punctual(interval) >= quorum:
            self.timing.quorum.add(now - held.opened)
            held.grace_until = max(now + self.timing.grace(self.slowest, self.rules), held.rests)

    def leads(self) -> dict[str, int]:
        """Steps that far units are asked before a round's own step, by name: as many as a round trip takes."""
        step, most = self.slowest or math.inf, self.rules.interval - 1
        leads = {name: spans(unit.round_trip, step) for name, unit in self.roster.live.items()}
        return {name: min(lead, most) for name, lead in sorted(leads.items()) if lead}

    def ask(self, round_id: RoundId, far: Iterable[str], now: float) -> None:
        """Asks these units for a round whose step is still to come."""
        p = round_id.fragment
        if round_id not in self.held:
            if not self._fits(p) or any(held.id.fragment == p for held in self.held.values()):
                return
            self._make(round_id, now)
        self._pull(self.held[round_id], (self.units[name] for name in far))

    def skip(self, step: int) -> None:
        """Gives up what units were asked for early whose step has passed without its round."""
        for held in list(self.held.values()):
            if held.stage == "Early" and (held.id.step <= step or self.ending):
                self.discard(held.id, "its step was skipped")
        if self.ending:
            self._abandon_all("the target is reached")

    def discard(self, round_id: RoundId, why: str) -> None:
        """Gives a round up, whole. What it did not ask for itself counts in the fragment's next one, unless the merge
        has failed."""
        held = self.held.pop(round_id)
        self.roster.close(round_id)
        for name in sorted(set(held.contributions.members).difference(held.contributions.asked(round_id))):
            if held.open:
                self.carry(held, name)
            else:
                self.effects.append(Release(held.contributions.members[name].round, name))
        for member in held.members:
            self.units[member.unit].account.thaw(round_id.fragment)
        for name in held.contributions.parts:
            self.units[name].dropped += 1
        self.effects.append(
            note("discarded", round=str(round_id), units=sorted(held.contributions.parts), why=why)
        )
        self.effects.append(self.over(round_id))

    def over(self, round_id: RoundId) -> Release:
        """A round is at its end, but for those whose contributions to it are carried over."""
        later = self.carried.get(round_id.fragment)
        return Release(round_id, None, () if later is None else later.contributions.asked(round_id))

    def _again(self, held: Round, why: str, now: float) -> None:
        """Discards an attempt, and opens the next one."""
        self.discard(held.id, why)
        if not self.ending:
            self.open(replace(held.id, attempt=held.id.attempt + 1), now)

    def close(self, why: str) -> None:
        """Gives up every round whose merge has not begun."""
        for held in list(self.held.values()):
            if held.open:
                self.discard(held.id, why)
        self._abandon_all(why)

    def carry(self, held: Round, name: str) -> None:
        """A contribution comes too late for this round: it counts in the fragment's next one, as long as there is
        memory for τ rounds besides it. That of a host which does not know its link yet is awaited an interval more:
        then the host answers anew, by what it has measured."""
        widths = sorted(versions.width for versions in self.versions)[-self.rules.overlap :]
        needed = sum(widths) * len(self.roster.live) + self.versions[held.id.fragment].width + self._kept
        why = "there is no memory to keep it" if needed > self.capacity else ""
        why = "there is no next round" if self.ending else why
        if why:
            self.exclude(held, name, f"its body comes too late, and {why}")
            return
        later = self.carried.setdefault(held.id.fragment, Round(held.id, held.asked, stage="Receiving"))
        held.contributions.move(name, later.contributions)
        held.declined.add(name)
        if name not in later.contributions.arrivals:
            until = held.enough + self.interval_seconds
            later.contributions.arrivals[name] = later.contributions.deadlines[name] = until

    def exclude(self, held: Round, name: str, why: str) -> None:
        """A unit goes on without this round, and loses nothing by it."""
        asked = held.contributions.asked_by(name) or held.id
        held.drop(name, self.rules.quorum)
        self.effects += [Release(round_id, name) for round_id in sorted({held.id, asked})]
        self.dropped(name, asked, why)

    def dropped(self, name: str, round_id: RoundId, why: str) -> None:
        """Counts a contribution that is not taken."""
        self.units[name].dropped += 1
        self.effects.append(note("dropped", unit=name, round=str(round_id), why=why))

    def _make(self, round_id: RoundId, now: float) -> Round:
        """A round that collects nothing yet but what an earlier one of its fragment has carried over."""
        earlier, versions = self.carried.pop(round_id.fragment, None), self.versions[round_id.fragment]
        held = self.held[round_id] = Round(round_id, now if earlier is None else earlier.asked)
        if earlier is None:
            return held
        for name, member in list(earlier.contributions.members.items()):
            stale = versions.unusable(member.anchor, self.units[name], round_id.step, self.rules)
            if stale:
                self.exclude(earlier, name, stale)
            else:
                earlier.contributions.move(name, held.contributions)
        return held

    def _abandon_all(self, why: str) -> None:
        for p in list(self.carried):
            self._abandon(p, why)

    def _abandon(self, p: int, why: str) -> None:
        """Gives up what was carried over for the next round of fragment `p`."""
        earlier = self.carried.pop(p)
        for name in list(earlier.contributions.parts):
            self.exclude(earlier, name, why)

    def _pull(self, held: Round, units: Iterable[Unit]) -> None:
        for unit in units:
            if (unit.name, unit.incarnation) not in held.pulled:
                held.pulled.add((unit.name, unit.incarnation))
                least = self.versions[held.id.fragment].least(unit, held.id.step, self.rules)
                self.effects.append(SendPull(held.id, unit.name, least))

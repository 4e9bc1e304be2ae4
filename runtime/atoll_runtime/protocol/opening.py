"""Which rounds are open, which units are asked to contribute to them, and when a round is given up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from atoll_runtime.protocol.effects import Effect, Release, SendPull, note
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.linkshare import spans
from atoll_runtime.protocol.norms import LEAST_UNITS
from atoll_runtime.protocol.pace import Ema, Timing
from atoll_runtime.protocol.roster import Roster
from atoll_runtime.protocol.round import Round
from atoll_runtime.protocol.rules import FAST_FACTOR, Rules
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.versions import Versions


@dataclass
class OpenRounds:
    """The open rounds of a shard, and the state that they need. Effects are appended to `effects`."""

    rules: Rules
    versions: list[Versions]
    """By fragment."""
    series: str = ""
    """Names the life of the shard."""
    units: dict[str, Unit] = field(default_factory=dict)
    capacity: float = math.inf
    """Elements of contributions for which there is memory."""
    in_flight: dict[RoundId, Round] = field(default_factory=dict)
    carried: dict[int, Round] = field(default_factory=dict)
    """By fragment, contributions with bodies too late for their round. They count in the fragment's next round."""
    merges: int = 0
    last_quorum: str = ""
    interval: Ema = field(default_factory=lambda: Ema(0.1))
    """Inner steps between two merges of the same fragment, as measured."""
    timing: Timing = field(default_factory=Timing)
    ending: bool = False
    """The target is reached, so no new rounds are opened."""
    seconds: float = 0.0
    """Seconds of an inner step of the slowest live unit. Shard 0 tells them to other shards, which get no reports."""
    quickest: float = 0.0
    """Seconds of the shortest step of a unit, told by shard 0, or known to the process before this one."""
    away: tuple[float, float] = (0.0, -math.inf)
    """When the process before this one was last at work, and when this one began."""
    effects: list[Effect] = field(default_factory=list)

    @cached_property
    def owned(self) -> tuple[int, ...]:
        """Fragments of which the shard owns a part."""
        return tuple(each.p for each in self.versions if each.size)

    @property
    def holding(self) -> tuple[Round, ...]:
        """All that hold contributions: rounds in flight, and those carried over to the next round of a fragment."""
        return (*self.in_flight.values(), *self.carried.values())

    @cached_property
    def roster(self) -> Roster:
        """Which units are live and which are waited for, as of the last event."""
        collecting = (held for held in self.in_flight.values() if held.stage == "Collecting")
        return Roster(self.rules, self.units.values(), collecting)

    @property
    def live(self) -> list[Unit]:
        """Units that can contribute now, by name."""
        return [unit for _, unit in sorted(self.roster.live.items())]

    @cached_property
    def tokens(self) -> int:
        """Merged token-fragments of all units. Only a merge changes this."""
        return sum(unit.account.merged for unit in self.units.values())

    @property
    def slowest(self) -> float:
        """Seconds of an inner step of the slowest live unit that sets the pace of the run."""
        return self.roster.slowest or self.seconds

    @property
    def fastest(self) -> float:
        """Seconds of the shortest step of a unit; 0 while not known. After a restart the first units that report change
        it little."""
        now, before = self.roster.fastest, self.lasting
        return max(min(now, before), before / FAST_FACTOR) if now else before

    @property
    def lasting(self) -> float:
        """The same, as the next process knows it: without what fewer than three units have reported after a restart."""
        few = self.roster.paced < LEAST_UNITS
        return (few and self.quickest) or self.roster.fastest or self.quickest

    @property
    def interval_seconds(self) -> float:
        """Seconds between two rounds of a fragment at the pace of `slowest`; 0 while not known."""
        return self.rules.interval * self.slowest

    @property
    def punctual_seconds(self) -> float:
        """Seconds for which a first attempt awaits bodies that its quorum does not need; infinite while not known.

        Others can then fetch the version before the fragment is due again: a link that carries every round takes
        at most the time between two rounds.
        """
        return self.interval_seconds * (1 - 1 / max(self.rules.fragments, 2)) or math.inf

    def leasts(self, unit: Unit, step: int) -> tuple[int, ...]:
        """For each fragment the oldest anchor that a contribution of this unit at `step` may have."""
        return tuple(versions.least(unit, step, self.rules) for versions in self.versions)

    def hush(self, silent: Mapping[str, int], now: float) -> None:
        """Shard 0 tells which units are silent. They are not waited for. Units that are back are asked."""
        for name, unit in self.units.items():
            unit.hushed = silent.get(name) == unit.incarnation
            self.roster.look(unit, now)
        for held in self.in_flight.values():
            if held.stage == "Collecting":
                self._pull(held, self.live)

    def room(self, p: int) -> bool:
        """A round of fragment `p` may be opened: no due round is of `p`, fewer than τ are at work, and there is memory
        for it beside the due ones. A round that only waits for the links of its members does not count as at work, but
        it needs memory."""
        return self._has_place(p) and self._fits_beside(p, self._due)

    def _has_place(self, p: int) -> bool:
        """The same but for the memory."""
        due = self._due
        busy = sum(held.stage != "Receiving" for held in due)
        return busy < self.rules.overlap and all(held.id.fragment != p for held in due)

    @property
    def _due(self) -> list[Round]:
        """Rounds whose step has come."""
        return [held for held in self.in_flight.values() if held.stage != "Early"]

    def _fits_beside(self, p: int, due: Sequence[Round]) -> bool:
        """There is memory for a round of fragment `p` beside those that are due. Without it they would keep each other
        from their quorums."""
        return not due or self._need(p, due) <= self.capacity

    def _fits(self, p: int) -> bool:
        """There is memory for a round of fragment `p` beside all that hold contributions."""
        return self._need(p, self.in_flight.values()) + self._kept <= self.capacity

    def _need(self, p: int, rounds: Iterable[Round]) -> int:
        """Elements of the contributions of all live units to a round of fragment `p` and to these."""
        fragments = {p, *(held.id.fragment for held in rounds)}
        return sum(self.versions[q].width for q in fragments) * len(self.roster.live)

    @property
    def _kept(self) -> int:
        """Elements of the contributions that are carried over."""
        kept = self.carried.items()
        return sum(len(earlier.contributions.parts) * self.versions[p].width for p, earlier in kept)

    def open(self, round_id: RoundId, now: float) -> None:
        """Asks every live unit for its contribution. If contributions that came early or were carried over make a
        quorum, the grace window opens as if they had come a step later, so near units keep their time."""
        held = self.in_flight.get(round_id) or self._make(round_id, now)
        self._make_room(round_id)
        held.begin(now, self.rules.patience, self.slowest)
        self.roster.open(held)
        self.effects.append(note("opened", round=str(round_id)))
        self._pull(held, self.live)
        self._grant(held, now + self.slowest)

    def _make_room(self, round_id: RoundId) -> None:
        """Frees memory for a round that is due, where more units are live than when others were asked early or bodies
        were carried over. Early rounds and carried-over contributions give way."""
        why = "a round that is due needs its memory"
        for held in list(self.in_flight.values()):
            if held.stage == "Early" and held.id != round_id and not self._fits(round_id.fragment):
                self.discard(held.id, why)
        for p in list(self.carried):
            if not self._fits(round_id.fragment):
                self._abandon(p, why)

    def _grant(self, held: Round, now: float) -> None:
        """Opens the grace window of a collecting round once K headers are in with bodies that come in time.

        So a slow link that answers first does not hold up the others. The number of headers falls when the hosts of
        a unit answer again; below K the window is closed.
        """
        if not held.quorate:
            held.grace_until = None
        elif held.grace_until is None and held.punctual(self.punctual_seconds) >= held.quorum:
            self.timing.quorum.add(now - held.opened)
            held.grace_until = max(now + self._grace(held), held.rests)

    def _grace(self, held: Round) -> float:
        """Seconds of the grace window from now on. It is as long as it may be if a unit whose turn it is has yet to
        answer: otherwise the same K quickest units would be the members each time."""
        versions = self.versions[held.id.fragment]
        awaited = (self.units[name] for name in self.roster.awaited[held.id])
        if self.rules.grace_fraction and any(versions.owes(unit) for unit in awaited):
            return self.rules.grace_steps * self.slowest
        return self.timing.grace(self.slowest, self.rules)

    def leads(self) -> dict[str, int]:
        """By name of each far unit, how many steps before a round's own step it is asked: those of a round trip, and
        those by which its own steps are longer."""
        step, most = self.slowest or math.inf, self.rules.interval - 1
        leads = {name: spans(unit.round_trip, step) for name, unit in self.roster.live.items()}
        return {name: min(lead, most) for name, lead in sorted(leads.items()) if lead}

    def ask(self, round_id: RoundId, far: Iterable[str], now: float) -> None:
        """Asks these units for a round before its step."""
        p = round_id.fragment
        if round_id not in self.in_flight:
            if not self._fits(p) or any(held.id.fragment == p for held in self.in_flight.values()):
                return
            self._make(round_id, now)
        self._pull(self.in_flight[round_id], (self.units[name] for name in far))

    def skip(self, step: int) -> None:
        """Gives up early rounds that were not opened at their step. At the target, gives up all early rounds, and what
        is carried over."""
        for held in list(self.in_flight.values()):
            if held.stage == "Early" and (held.id.step <= step or self.ending):
                self.discard(held.id, "its step was skipped")
        if self.ending:
            self._abandon_all("the target is reached")

    def discard(self, round_id: RoundId, why: str) -> None:
        """Gives up a round completely. Contributions that were carried over to it count in the fragment's next round,
        unless the merge has failed."""
        held = self.in_flight.pop(round_id)
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
        """The end of a round, except for units with contributions to it that are carried over."""
        later = self.carried.get(round_id.fragment)
        return Release(round_id, None, () if later is None else later.contributions.asked(round_id))

    def _again(self, held: Round, why: str, now: float) -> None:
        """Discards an attempt and opens the next one. If more units are live now than there is memory for in the rounds
        that are due, the fragment waits until it is due again, and the other rounds have its memory."""
        self.discard(held.id, why)
        if not self.ending and self._fits_beside(held.id.fragment, self._due):
            self.open(replace(held.id, attempt=held.id.attempt + 1), now)

    def close(self, why: str) -> None:
        """Gives up every round with a merge that has not begun, and what is carried over."""
        for held in list(self.in_flight.values()):
            if held.open:
                self.discard(held.id, why)
        self._abandon_all(why)

    def carry(self, held: Round, name: str) -> None:
        """A contribution is too late for this round. It counts in the fragment's next round. If its host does not know
        its link yet, the body is awaited for one interval more. After that the host answers again, with what it has
        measured."""
        if self.ending:
            self.exclude(held, name, "its body comes too late, and there is no next round")
            return
        later = self.carried.setdefault(
            held.id.fragment, Round(held.id, held.quorum, held.asked, stage="Receiving")
        )
        held.contributions.move(name, later.contributions)
        held.declined.add(name)
        if name not in later.contributions.arrivals:
            until = held.enough + self.interval_seconds
            later.contributions.arrivals[name] = later.contributions.deadlines[name] = until

    def exclude(self, held: Round, name: str, why: str) -> None:
        """A unit goes on without this round, and loses no work."""
        asked = held.contributions.asked_by(name) or held.id
        held.drop(name)
        self.effects += [Release(round_id, name) for round_id in sorted({held.id, asked})]
        self.dropped(name, asked, why)

    def dropped(self, name: str, round_id: RoundId, why: str) -> None:
        """Counts a contribution that is not taken."""
        self.units[name].dropped += 1
        self.effects.append(note("dropped", unit=name, round=str(round_id), why=why))

    def _make(self, round_id: RoundId, now: float) -> Round:
        """A new round, with the contributions that are carried over to it and still count."""
        earlier, versions = self.carried.pop(round_id.fragment, None), self.versions[round_id.fragment]
        asked = now if earlier is None else earlier.asked
        held = self.in_flight[round_id] = Round(round_id, self.rules.quorum, asked)
        if earlier is None:
            return held
        for name, member in list(earlier.contributions.members.items()):
            # Its age counts when it was asked for: it is a round older now because this shard carried it over.
            stale = versions.unusable(member.anchor, self.units[name], member.round.step, self.rules)
            if stale:
                self.exclude(earlier, name, stale)
            else:
                earlier.contributions.move(name, held.contributions)
        return held

    def _abandon_all(self, why: str) -> None:
        for p in list(self.carried):
            self._abandon(p, why)

    def _abandon(self, p: int, why: str) -> None:
        """Gives up the contributions that are carried over to the next round of fragment `p`."""
        earlier = self.carried.pop(p)
        for name in list(earlier.contributions.parts):
            self.exclude(earlier, name, why)

    def _pull(self, held: Round, units: Iterable[Unit]) -> None:
        for unit in units:
            if (unit.name, unit.incarnation) not in held.pulled:
                held.pulled.add((unit.name, unit.incarnation))
                least = self.versions[held.id.fragment].least(unit, held.id.step, self.rules)
                self.effects.append(SendPull(held.id, unit.name, least))

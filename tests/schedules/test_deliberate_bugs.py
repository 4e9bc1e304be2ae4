"""Deliberate bugs of the protocol, one at a time: the schedules find each of them within a few seeds."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sim_disk import Mount
from soak import schedule

from atoll_runtime.learner.proposal import StepProposal
from atoll_runtime.protocol import claims, restoring
from atoll_runtime.protocol.coordinator import Coordinator, Follower
from atoll_runtime.protocol.cuts import Cuts
from atoll_runtime.protocol.effects import Release, Remember, Tell
from atoll_runtime.protocol.events import FinalCut, Persisted
from atoll_runtime.protocol.identifiers import NO_CUT
from atoll_runtime.protocol.ledger import REFUSED, Account, Span
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.norms import Norms
from atoll_runtime.protocol.progress import Progress
from atoll_runtime.protocol.roster import Roster
from atoll_runtime.protocol.round import Contributions, Round
from atoll_runtime.protocol.rounds import Rounds
from atoll_runtime.protocol.shardview import ShardView
from atoll_runtime.protocol.units import Unit
from atoll_runtime.protocol.versions import Versions
from atoll_runtime.syncer import journal, records
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.state import Parts

SEED = 700
SEEDS = 300
"""Within so many each bug is found. The rarest, a merge after the final cut, shows in one of 300 to 1,000."""

Patch = pytest.MonkeyPatch
Introduce = Callable[[Patch], None]
BUGS: dict[str, tuple[int, Introduce]] = {}


def bug(seed: int) -> Callable[[Introduce], Introduce]:
    """Registers a bug under its name. `seed`: the first that has found it, which is tried before all others."""

    def register(introduce: Introduce) -> Introduce:
        BUGS[introduce.__name__.replace("_", " ")] = seed, introduce
        return introduce

    return register


def replaced(name: str, seed: int, *changes: tuple[Any, str, object]) -> None:
    """Registers a bug that replaces attributes. `seed`: as for `bug`."""

    def introduce(patch: Patch) -> None:
        for change in changes:
            patch.setattr(*change)

    BUGS[name] = seed, introduce


def nothing(*_: object) -> None:
    """Takes the place of a method that should do something."""


replaced("the names of new files are not synced", 700, (Mount, "sync_folder", nothing))
replaced(
    "a state is written over the one before",
    700,
    (journal, "state_file", lambda directory, _: directory / "state-0.wal"),
)
replaced("shard 0 forgets its clock", 710, (Journal, "advance", nothing))
replaced("parts of a merged round stay in memory", 700, (Parts, "release", nothing))
replaced("bytes of a push that breaks are not given back", 702, (Parts, "unreserve", nothing))
replaced("a shard waits for a unit that shard 0 says is silent", 731, (Rounds, "hush", nothing))
replaced(
    "a silent unit is waited for as long as it is connected",
    731,
    (Roster, "expire", nothing),
    (Roster, "ends", math.inf),
)
released_whole = (Rounds, "over", lambda self, round_id: Release(round_id, None))
replaced("what is carried over is released with its round", 705, released_whole)
none_forgotten = (Cuts, "forgotten", lambda self, cut: False)
replaced("a cut that shard 0 has forgotten is never overtaken", 716, none_forgotten)
replaced("claims are not checked", 746, (claims, "impossible", lambda *facts, **more: ""))
replaced("honest steps are taken for impossible", 703, (claims, "SPARE", 0), (claims, "FASTER", 0.2))
replaced("norms are not compared", 706, (Norms, "outliers", lambda self, found, units: {}))
replaced("what came early keeps memory that a due round needs", 724, (Rounds, "_make_room", nothing))
ahead = property(lambda self: self.may_open(self.following))
replaced("a shard keeps its own clock when shard 0 is away", 700, (Follower, "opens", ahead))
part_of_tokens = property(lambda self: self.rounds.tokens)
replaced("the tokens of each fragment count towards the target", 700, (Syncer, "tokens", part_of_tokens))
lives_alike = property(lambda self: "", nothing)
replaced("answers to an earlier life of a shard are taken", 781, (Rounds, "series", lives_alike))
at_once = property(lambda self: self.orders.ending)
replaced(
    "a shard merges on after the final cut", 1152, (Syncer, "sealed", False), (Syncer, "finishing", at_once)
)


def unusable(patch: Patch, *reasons: str) -> None:
    """Anchors are used in spite of these reasons."""
    real = Versions.unusable

    def without(*facts: Any) -> str:
        why = real(*facts)
        return "" if any(reason in why for reason in reasons) else why

    patch.setattr(Versions, "unusable", without)


@bug(700)
def a_merge_is_acknowledged_before_the_journal_has_it(patch: Patch) -> None:
    def persist(self: Driver, round_id: Any, facts: Any) -> None:
        new = self._fresh.pop(round_id)
        self._write(functools.partial(self.journal.merge, round_id.fragment, new, facts))
        self.state.fragments[round_id.fragment] = new
        self._loop.call_soon(self.feed, Persisted(round_id))

    patch.setattr(Driver, "_persist", persist)


@bug(700)
def a_record_is_written_and_not_synced(patch: Patch) -> None:
    def append(self: Journal, file: int, head: bytes, *arrays: memoryview) -> None:
        records.append(self._disk, file, head, *arrays)
        if arrays:
            self._disk.sync(file)

    patch.setattr(Journal, "_append", append)


@bug(725)
def the_journals_writes_are_not_done_in_order(patch: Patch) -> None:
    def write(self: Driver, job: Callable[[], None]) -> Any:
        self._written = self._loop.run_in_executor(None, job)
        self._written.add_done_callback(self._check)
        return self._written

    patch.setattr(Driver, "_write", write)


@bug(713)
def a_unit_is_welcomed_and_a_cut_saved_before_the_journal_knows(patch: Patch) -> None:
    async def durable(self: Driver) -> None:
        await asyncio.sleep(0)

    patch.setattr(Driver, "durable", durable)


@bug(702)
def a_restarted_shard_forgets_which_incarnation_a_unit_has(patch: Patch) -> None:
    real = restoring.restore

    def restore(*facts: Any) -> Syncer:
        machine = real(*facts)
        for unit in machine.units.values():
            unit.incarnation = 0
        return machine

    patch.setattr(restoring, "restore", restore)


@bug(721)
def a_merge_is_served_before_it_is_durable(patch: Patch) -> None:
    real = Driver._persist

    def persist(self: Driver, round_id: Any, facts: Any) -> None:
        self.state.fragments[round_id.fragment] = self._fresh[round_id]
        real(self, round_id, facts)

    patch.setattr(Driver, "_persist", persist)


@bug(721)
def a_cut_holds_a_merge_that_is_not_durable(patch: Patch) -> None:
    real_persist, real_record = Driver._persist, Driver._record
    written: dict[tuple[Driver, int], Any] = {}

    def persist(self: Driver, round_id: Any, facts: Any) -> None:
        written[self, round_id.fragment] = self._fresh[round_id]
        real_persist(self, round_id, facts)

    def record(self: Driver, cut: Any, facts: Any) -> None:
        durable = self.state.fragments
        self.state.fragments = [written.get((self, p), each) for p, each in enumerate(durable)]
        real_record(self, cut, facts)
        self.state.fragments = durable

    patch.setattr(Driver, "_persist", persist)
    patch.setattr(Driver, "_record", record)


@bug(709)
def a_late_part_is_booked_as_merged(patch: Patch) -> None:
    real_admit, real_merged = Rounds.admit, Rounds.merged

    def admit(self: Rounds, part: Any) -> str:
        held = self.held.get(part.round)
        if held is None or held.stage != "Merging":
            return real_admit(self, part)
        held.stage = "Collecting"
        try:
            return real_admit(self, part)
        finally:
            held.stage = "Merging"

    def merged(self: Rounds, event: Any, now: float) -> Any:
        held = self.held[event.round]
        for member in held.members:
            span = Span(member.incarnation, member.begun, member.trained)
            self.units[member.unit].account.freeze(event.round.fragment, span)
        return real_merged(self, event, now)

    patch.setattr(Rounds, "admit", admit)
    patch.setattr(Rounds, "merged", merged)


@bug(701)
def a_round_that_is_not_due_yet_is_in_the_way_of_the_others(patch: Patch) -> None:
    real = Rounds.room

    def room(self: Rounds, p: int) -> bool:
        return real(self, p) and all(held.stage != "Early" for held in self.held.values())

    patch.setattr(Rounds, "room", room)


@bug(740)
def a_round_is_merged_below_its_quorum(patch: Patch) -> None:
    real = Rounds._again

    def again(self: Rounds, held: Any, why: str, now: float) -> None:
        if held.contributions.members and not held.contributions.lacking:
            self.roster.close(held.id)
            self._merge(held, now)
        else:
            real(self, held, why, now)

    patch.setattr(Rounds, "_again", again)


@bug(701)
def the_same_work_counts_twice(patch: Patch) -> None:
    unusable(patch, "was merged already")
    patch.setattr(Unit, "disputed", lambda self, part: "")


@bug(701)
def a_new_incarnation_contributes_against_any_version(patch: Patch) -> None:
    unusable(patch, "a new incarnation counts from")


@bug(715)
def a_stale_contribution_is_taken(patch: Patch) -> None:
    unusable(patch, "steps old, more than")


@bug(700)
def the_final_cut_begins_while_rounds_are_in_flight(patch: Patch) -> None:
    real = Coordinator._conclude

    def end(self: Coordinator) -> None:
        held, self.rounds.in_flight = self.rounds.in_flight, {}
        real(self)
        self.rounds.in_flight = held

    patch.setattr(Coordinator, "_conclude", end)


@bug(729)
def the_end_is_announced_before_the_journal_has_it(patch: Patch) -> None:
    real = Driver._carry_out

    def carry_out(self: Driver, effect: Any) -> None:
        if isinstance(effect, Tell) and getattr(effect.news, "final", ""):
            self._tell(effect.news)
        elif not (isinstance(effect, Remember) and self.machine.final):
            real(self, effect)

    patch.setattr(Driver, "_carry_out", carry_out)


@bug(711)
def the_clock_is_announced_before_the_journal_has_it(patch: Patch) -> None:
    real = Driver._carry_out

    def carry_out(self: Driver, effect: Any) -> None:
        if isinstance(effect, Tell):
            self._tell(effect.news)
        else:
            real(self, effect)

    patch.setattr(Driver, "_carry_out", carry_out)


@bug(700)
def orders_are_announced_in_any_order(patch: Patch) -> None:
    async def once_durable(self: Driver, act: Callable[[], None]) -> None:
        await self.durable()
        await asyncio.to_thread(nothing)  # as long as it takes
        act()

    patch.setattr(Driver, "_once_durable", once_durable)


@bug(704)
def a_shard_that_is_back_skips_its_part_of_a_cut(patch: Patch) -> None:
    real = Follower._conclude

    def follow(self: Follower) -> None:
        if self.cuts.saving == NO_CUT and self.orders.cut.number > 0:  # the first since its start
            self.cuts.newest = max(self.cuts.newest, self.orders.cut)
            self.cuts.save()
        real(self)

    patch.setattr(Follower, "_conclude", follow)


@bug(709)
def a_shard_merges_what_was_sent_after_a_cut_and_records_itself_then(patch: Patch) -> None:
    real, least = Follower._conclude, dict[Any, int]()

    def follow(self: Follower) -> None:
        cut, merges = self.orders.cut, self.committed["merges"]
        if cut <= self.cuts.newest or cut.final or merges >= least.setdefault((id(self), cut), merges + 1):
            real(self)

    patch.setattr(Follower, "_conclude", follow)
    patch.setattr(Cuts, "unheard", lambda self, cut: "")


@bug(700)
def learners_are_stopped_before_the_final_cut_stands(patch: Patch) -> None:
    real = Driver._record

    def record(self: Driver, cut: Any, facts: Any) -> None:
        real(self, cut, facts)
        if cut.final:
            self._loop.call_soon(self.feed, FinalCut(f"sim://bucket/global/{cut.step}"))

    patch.setattr(Driver, "_record", record)


@bug(701)
def tokens_of_a_replaced_incarnation_are_forgotten(patch: Patch) -> None:
    def replaced(self: Account, incarnation: int) -> None:
        self.past += self.position
        self.incarnation, self.position = incarnation, 0
        self.settled.clear()

    patch.setattr(Account, "replace", replaced)


@bug(700)
def a_learner_counts_on_when_a_version_arrives(patch: Patch) -> None:
    def adopt(self: Progress, number: int, version: int) -> None:
        self.counters[number].version = version

    patch.setattr(Progress, "adopt", adopt)


@bug(700)
def a_learner_keeps_what_it_has_when_a_shard_has_lost_it(patch: Patch) -> None:
    def welcomed(
        self: ShardView, lineage: str, versions: Any, least: Any, cut: Any, series: str, *_: Any
    ) -> bool:
        self.lineage, self.series, self.offered, self.linked = lineage, series, list(versions), True
        self.marked(cut)
        return False

    patch.setattr(ShardView, "welcomed", welcomed)


@bug(705)
def hosts_of_a_unit_do_not_agree_before_they_act(patch: Patch) -> None:
    def agreed(self: StepProposal, low: Any, high: Any) -> StepProposal:
        return replace(self, arrivals=dict(self.arrivals), pulls=dict(self.pulls))

    patch.setattr(StepProposal, "agreed", agreed)


@bug(711)
def a_unit_takes_versions_that_lack_its_work(patch: Patch) -> None:
    real = ShardView.announced
    patch.setattr(ShardView, "announced", lambda self, p, version, least: real(self, p, version, version))


@bug(707)
def refused_tokens_are_written_off_and_merged_as_well(patch: Patch) -> None:
    real = Account.refuse

    def refuse(self: Account, p: int) -> None:
        real(self, p)
        self._discard(REFUSED, self.position - self.settled.get(p, 0))

    patch.setattr(Account, "refuse", refuse)


@bug(724)
def a_round_is_closed_as_soon_as_it_has_its_quorum(patch: Patch) -> None:
    real = Round.until

    def until(self: Round, awaited: Any, ending: bool) -> float:
        return -math.inf if self.quorate else real(self, awaited, ending)

    patch.setattr(Round, "until", until)


@bug(700)
def a_round_is_merged_without_the_bodies_of_its_members(patch: Patch) -> None:
    patch.setattr(Contributions, "lacking", property(lambda self: []))
    patch.setattr(Contributions, "levels", {})  # else the machine fails, before anything is merged


@bug(706)
def the_grace_window_of_an_early_quorum_opens_when_the_round_is_due(patch: Patch) -> None:
    real = Rounds._grant
    patch.setattr(Rounds, "_grant", lambda self, held, now: real(self, held, min(now, held.opened)))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", BUGS)
def test_schedules_find_a_deliberate_bug(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    known, introduce = BUGS[name]
    introduce(monkeypatch)
    for seed in (known, *range(SEED, SEED + SEEDS)):
        if failure := schedule(seed).failure:
            print(f"{name}: seed {seed}: {failure[:200]}")
            return
    pytest.fail(f"no schedule of {SEEDS} finds: {name}")

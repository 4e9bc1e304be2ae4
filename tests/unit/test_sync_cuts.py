"""Which cuts a shard believes that learners tell of: none that is further on than any shard is known to be."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lone_shard import LONE

from atoll_runtime.learner.proposal import Proposal
from atoll_runtime.sync import restoring
from atoll_runtime.sync.events import (
    NO_CUT,
    CutId,
    Declined,
    Event,
    Heard,
    Joined,
    Left,
    Marked,
    Note,
    Part,
    RecordCut,
    Reported,
    RoundId,
    ShardClock,
)
from atoll_runtime.sync.machine import Syncer
from atoll_runtime.syncer import hosts
from atoll_runtime.transport.messages import PROTOCOL, Hello

RULES = replace(LONE, cut_interval=100, shard=1, shards=2)
WILD = CutId(2**31)
DOUBT = "cut: 2147483648, but no shard is known to be beyond global step 1"


class Shard:
    """A machine at global step 1, in whose first round it waits for unit a; what it was told of cuts since."""

    def __init__(self) -> None:
        self.machine, self.recorded, self.notes = (
            Syncer.begin(RULES, (10,), [0]),
            list[CutId](),
            list[object](),
        )
        self.tell(
            Joined("a", 1, 0, 1, 0, ""), *(Reported("a", 1, 0, n, n, 10 * n, 1.0, 0.1, n) for n in (1, 2))
        )
        (self.round,) = self.machine.rounds.held

    def tell(self, *events: Event, now: float = 1.0) -> None:
        for event in events:
            for effect in self.machine.handle(event, now):
                if isinstance(effect, RecordCut):
                    self.recorded.append(effect.cut)
                elif isinstance(effect, Note):
                    self.notes.append(effect.entry.get("why"))


def part(round_id: RoundId, cut: CutId) -> Part:
    return Part("a", 1, 0, 1, round_id, 0, 2, 20, 2, 2, 0, 10, 10, 20, cut)


@pytest.mark.parametrize(
    "tell",
    [
        lambda round_id: Joined("b", 1, 0, 1, 0, "", WILD),
        lambda round_id: Marked("a", 1, 0, WILD, 20),
        lambda round_id: part(round_id, WILD),
        lambda round_id: Declined(part(round_id, WILD), DOUBT),
    ],
    ids=["joined", "marked", "part", "declined"],
)
def test_a_cut_beyond_all_that_is_known_is_refused_by_name_and_not_recorded(tell) -> None:
    shard = Shard()
    shard.tell(tell(shard.round))
    assert shard.recorded == [] and shard.machine.cuts.newest == CutId(0)
    assert DOUBT in shard.notes
    assert restoring.restore(RULES, (10,), shard.machine.record()).cuts.newest == CutId(0)
    shard.tell(Heard("a", (ShardClock(90, 0), ShardClock(0, 0))))
    assert shard.recorded == [], "nothing came to light that speaks for it"


def test_a_part_from_beyond_an_unbelievable_cut_is_refused_before_its_body_is_read() -> None:
    shard = Shard()
    assert shard.machine.admit(part(shard.round, WILD)) == DOUBT
    assert shard.machine.admit(part(shard.round, NO_CUT)) == ""


@pytest.mark.parametrize("stays", [True, False])
def test_a_shard_that_was_away_records_the_cut_once_it_hears_how_far_the_others_are(stays: bool) -> None:
    shard = Shard()
    shard.tell(Marked("a", 1, 0, CutId(700), 20))
    if not stays:
        shard.tell(Left("a", 1, 0))
    assert shard.recorded == []
    shard.tell(Heard("a", (ShardClock(701, 0), ShardClock(0, 0))))
    assert shard.recorded == [CutId(700)] * stays


def test_a_cut_that_follows_others_that_were_given_up_is_recorded_though_no_clock_went_on() -> None:
    """One of a run's shards was away from a suspension: the others' cuts went on, and their clocks stood still."""
    shard = Shard()
    shard.tell(Marked("a", 1, 0, CutId(700), 20))
    shard.tell(Heard("a", (ShardClock(4, 0, "", 699), ShardClock(0, 0))))
    assert shard.recorded == [CutId(700)]
    assert shard.machine.clock.cut == 700


@pytest.mark.parametrize("others", [False, True])
def test_learners_whom_nobody_contradicts_are_believed_after_a_few_attempts(others: bool) -> None:
    """A shard that lost its journal twice has nothing but their word, and would refuse all that they send."""
    shard = Shard()
    if others:
        shard.tell(Joined("b", 1, 0, 1, 0, ""), Reported("b", 1, 0, 1, 1, 10, 1.0, 0.1, 1))
    shard.tell(Marked("a", 1, 0, CutId(700), 20))
    refused = 0
    for now in range(2, 400):
        held = next(iter(shard.machine.rounds.held), None)
        if held is None or shard.recorded:
            break
        if doubt := shard.machine.admit(part(held, CutId(700))):
            refused += 1
            shard.tell(Declined(part(held, CutId(700)), doubt), now=now)
        shard.tell(Reported("a", 1, 0, now + 2, now + 2, 10 * now, 1.0, 0.1, now + 2), now=now)
        if others:
            shard.tell(Reported("b", 1, 0, now, now, 10 * now, 1.0, 0.1, now), now=now)
    assert refused >= 3
    assert shard.recorded == [CutId(700)] * (not others)


@pytest.mark.parametrize(("silent", "believed"), [("b", True), ("bc", False)], ids=["needed", "enough"])
def test_a_learner_that_a_round_needs_is_believed_though_one_that_began_after_a_loss_tells_of_no_cut(
    silent: str, believed: bool
) -> None:
    """The cuts after the newest whole one were lost with the journal: who began since has never heard of them."""
    machine = Syncer.begin(replace(RULES, quorum=2, shard=0, shards=1), (10,), [500], 500)
    for unit in "a" + silent:
        machine.handle(Joined(unit, 1, 0, 1, 500, "", CutId(700 if unit == "a" else 500)), 0.0)
    for n in range(1, 400):
        for unit in "a" + silent:
            machine.handle(Reported(unit, 1, 0, n, n, 10 * n, 1.0, 1.0, n), float(n))
    assert (machine.cuts.newest == CutId(700)) == believed


def test_what_a_host_says_that_it_holds_is_no_proof_of_the_cut_that_it_tells_of() -> None:
    """One Hello would name a cut for the whole run that no clock ever comes to."""
    shard = Shard()
    wild = hosts.LAST_STEP
    hello = Hello(PROTOCOL, "r", "b", 1, 0, 1, "f", "bf16", (wild,), 0, "", CutId(wild))
    assert not hosts.beyond(hello)
    shard.tell(hosts.joined(hello))
    assert shard.recorded == [] and shard.machine.cuts.newest == CutId(0)
    assert f"cut: {wild}, but no shard is known to be beyond global step 1" in shard.notes


def test_a_shard_that_lost_its_journal_records_the_next_cut_after_its_newest_whole_one_at_once() -> None:
    """The next one came with the first merge after an interval; learners alone know of it."""
    shard = Shard()
    following = CutId(shard.machine.step + RULES.cut_interval + RULES.interval)
    shard.tell(Joined("b", 1, 0, 1, 0, "", following))
    assert shard.recorded == [following]
    shard.tell(Marked("b", 1, 0, following, 20), part(shard.round, following))
    assert not any(shard.notes) and shard.machine.units["a"].dropped == 0


def test_the_last_cut_that_a_shard_takes_from_a_host_and_those_after_it_are_ones_that_hosts_agree_on() -> (
    None
):
    """In int32: a marker that does not fit would end every learner of the run, and again after each restart."""
    for step in (hosts.LAST_STEP, hosts.LAST_STEP + 1000):
        cut = CutId(step, True)
        values = Proposal({}, {}, cut).values(1)
        assert Proposal({}, {}).agreed(values, values).cut == cut

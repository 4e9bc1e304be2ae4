"""Cuts: only shard 0 begins them. What overtakes its orders is refused, or shows that it has forgotten a cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest
from lone_shard import LONE, Story, joined, offered

from atoll_runtime.learner.proposal import StepProposal
from atoll_runtime.protocol import restoring
from atoll_runtime.protocol.effects import RecordCut
from atoll_runtime.protocol.events import (
    CutEnded,
    CutOrdered,
    Declined,
    Event,
    Left,
    Merged,
    Persisted,
    Received,
    ShardLeft,
    ShardTold,
)
from atoll_runtime.protocol.identifiers import LAST_STEP, NO_CUT, CutId
from atoll_runtime.protocol.messages import Orders, Part, Standing
from atoll_runtime.protocol.rules import Rules

FIRST = replace(LONE, cut_interval=100, shards=2)
SECOND = replace(FIRST, shard=1)
STARTED = 1000
"""Number of the first cut that this process begins."""
CUT = CutId(STARTED + 5, 7)


class Shard(Story):
    """A machine at global step 1 with its first round open, which waits for unit a."""

    merges = False

    def __init__(self, rules: Rules) -> None:
        super().__init__(rules, "a")
        self.machine.cuts.started = STARTED
        self.now = 1.0
        self.step("a", 0.1)
        self.step("a", 0.1)
        if rules.shard:
            self.tell(Orders(step=1, cut=self.machine.cuts.newest))
        self.open = self.round()
        self.effects.clear()

    @property
    def recorded(self) -> list[CutId]:
        return [each.cut for each in self.asked(RecordCut)]

    def merge(self) -> Shard:
        return self.tell(Received(self.part("a"), 1.0), Merged(self.open), Persisted(self.open))

    def again(self, rules: Rules) -> Shard:
        """Starts the next process on the same volume."""
        story = Shard(rules)
        story.machine = restoring.restore(rules, (10,), self.remembered, self.now)
        story.machine.cuts.started = STARTED + 1000
        return story


Telling = Callable[[Part], Event]


@pytest.mark.parametrize(
    "telling",
    [lambda part: Received(part, 1.0), offered, lambda part: Declined(part, "")],
    ids=["part", "header", "declined"],
)
@pytest.mark.parametrize("rules", [FIRST, SECOND], ids=["shard-0", "another"])
def test_what_was_sent_after_a_cut_that_a_shard_was_not_told_of_is_refused_by_name(
    rules: Rules, telling: Telling
) -> None:
    shard = Shard(rules)
    late = shard.part("a", cut=CUT)
    assert "cut 7, of which shard 0 has not told" in shard.machine.admit(late), "before its body is read"
    shard.tell(telling(late))
    assert shard.recorded == [] and shard.machine.cuts.newest == CutId(0)
    assert shard.machine.units["a"].dropped == 1
    assert shard.machine.admit(replace(late, cut=NO_CUT)) != "" or isinstance(telling(late), Declined)


def test_an_order_begins_a_cut_unless_one_that_holds_as_much_is_under_way() -> None:
    shard = Shard(FIRST).tell(CutOrdered(25), CutOrdered(25))
    assert [(cut.step, cut.final) for cut in shard.recorded] == [(25, False)]
    again = shard.again(FIRST).tell(CutOrdered(25))
    assert [cut.step for cut in again.recorded] == [26], "the other process's is nobody's any more"
    again.tell(CutEnded(again.recorded[0], whole=False))
    again.tell(CutOrdered(25))
    assert [cut.step for cut in again.recorded] == [26, 27], "the one before was given up"
    again.tell(CutEnded(again.recorded[1], whole=True), CutOrdered(25), CutOrdered(27))
    assert [cut.step for cut in again.recorded] == [26, 27], "it stands"


def test_the_newest_cut_is_current_once_each_shard_holds_its_merges_in_it_and_no_learner_is_left() -> None:
    shard = Shard(FIRST).tell(Left("a", 1, 0), CutOrdered(5))
    (cut,) = shard.recorded
    kept = Standing(1, False, cut, cut, idle=True)
    shard.tell(ShardTold(1, kept))
    assert not shard.machine.current, "it does not stand"
    shard.tell(CutEnded(cut, whole=True))
    assert shard.machine.current
    for change in ({"kept": NO_CUT}, {"kept": CutId(0)}, {"idle": False}):
        assert not shard.tell(ShardTold(1, msgspec.structs.replace(kept, **change))).machine.current, change
    assert not shard.tell(ShardTold(1, kept), ShardLeft(1)).machine.current
    shard.tell(ShardTold(1, kept), joined("a"))
    assert not shard.machine.current, "a learner may bring more"
    shard.tell(Left("a", 1, 0))
    assert not shard.machine.current, "shard 1 may have merged what it brought, and not told yet"
    shard.tell(joined("a"))
    shard.merge().tell(Left("a", 1, 0))
    assert not shard.machine.current, "shard 0 has merged since"


def test_a_shard_without_learners_is_idle_once_the_round_whose_members_it_has_frozen_is_durable() -> None:
    shard = Shard(SECOND)
    assert not shard.machine.standing.idle
    shard.tell(Received(shard.part("a"), 1.0), Left("a", 1, 0))
    assert not shard.machine.standing.idle, "it merges what came last"
    shard.tell(Merged(shard.open))
    assert not shard.machine.standing.idle
    assert shard.tell(Persisted(shard.open)).machine.standing.idle


def test_a_shard_says_of_a_cut_that_it_holds_all_while_nothing_was_merged_since() -> None:
    shard = Shard(SECOND).tell(Orders(step=1, cut=CUT))
    assert shard.machine.standing.kept == NO_CUT, "its part does not stand"
    shard.tell(CutEnded(CUT, whole=True))
    assert shard.machine.standing.kept == CUT
    assert shard.merge().machine.standing.kept == NO_CUT
    lost = Shard(SECOND).tell(Orders(step=1, cut=CUT), CutEnded(CUT, whole=True, own=False))
    assert (lost.machine.standing.saved, lost.machine.standing.kept) == (CUT, NO_CUT)


def test_the_last_cut_that_a_shard_takes_from_a_host_and_those_after_it_are_ones_that_hosts_agree_on() -> (
    None
):
    """Hosts agree in int32. A marker that does not fit would end every learner of the run, again after each restart."""
    for step in (LAST_STEP, LAST_STEP + 1000):
        cut = CutId(2**31 - 1, step, True)
        values = StepProposal({}, {}, cut).values(1)
        agreed = StepProposal({}, {}).agreed(values, values).cut
        assert (agreed.number, agreed.step, agreed.final) == (cut.number, cut.step, cut.final)

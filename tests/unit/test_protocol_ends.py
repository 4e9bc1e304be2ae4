"""How a run ends or is suspended while the target, the shards, the units or the orders change."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Self

import pytest
from lone_shard import LONE, Story, joined, reported

from atoll_runtime.protocol import restoring
from atoll_runtime.protocol.effects import Effect, Merge, RecordCut, SendPull, Tell
from atoll_runtime.protocol.events import Event, Merged, Persisted, Received, ShardLeft, ShardTold, Tick
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.protocol.messages import Part, Standing
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.waiting import why

RULES = replace(LONE, target_steps=20, cut_interval=1000)
SIZES = (10,)


class Machine(Story):
    """A machine that gets events a tenth of a second apart. `effects` are those of the last `tell`."""

    merges = False

    def tell(self, *events: Event, now: float | None = None) -> Self:
        effects: list[Effect] = []
        for event in events:
            self.effects = []
            super().tell(event, now=self.now + 0.1)
            effects += self.effects
        self.effects = effects
        return self

    def cuts(self) -> list[tuple[int, bool]]:
        """Steps of the newly recorded cuts, and whether each is final."""
        return [(each.cut.step, each.cut.final) for each in self.asked(RecordCut)]


def at_its_end(rules: Rules = RULES) -> Machine:
    """Shard 0 at its target."""
    return Machine(rules, version=20).tell(Tick())


@pytest.mark.parametrize(
    ("changed", "ends"),
    [
        (replace(RULES, target_steps=40), False),
        (replace(RULES, target_steps=None, target_tokens=10**6), False),
        (replace(RULES, target_steps=10), True),
        (RULES, True),
    ],
    ids=["raised", "in-tokens", "lowered", "same"],
)
def test_a_final_cut_that_was_being_saved_when_shard_0_died_is_begun_anew_or_given_up_for_a_new_target(
    changed: Rules, ends: bool
) -> None:
    story = at_its_end()
    assert story.cuts() == [(21, True)]
    again = Machine(changed)
    again.machine = restoring.restore(changed, SIZES, story.remembered, story.now)
    again.tell(Tick())
    assert again.cuts() == [(22, True)] * ends
    assert again.machine.finishing == ends and again.machine.orders.cut.final == ends


TWO = replace(RULES, shards=2)
DONE, BUSY = Standing(20, True, NO_CUT), Standing(20, False, NO_CUT)


def test_the_final_cut_begins_once_every_other_shard_has_told_that_it_is_at_its_end() -> None:
    story = at_its_end(TWO)
    assert story.cuts() == [] and [each.news.ending for each in story.asked(Tell)] == [True]
    assert "waiting for shard 1" in why(story.machine, story.now)
    assert story.tell(ShardTold(1, BUSY)).cuts() == []
    assert story.tell(ShardTold(1, DONE), ShardLeft(1), Tick()).cuts() == [(21, True)]
    waiting = at_its_end(TWO).tell(ShardTold(1, BUSY), ShardLeft(1), Tick())
    assert waiting.cuts() == [], "nothing is known of one that is away"
    earlier = at_its_end(TWO).tell(ShardTold(1, Standing(19, True, NO_CUT)))
    assert earlier.cuts() == [], "it was done at the target before this one, and has not heard of this one"


@pytest.mark.parametrize(
    "answers",
    [order for order in permutations([(0, 3), (0, 5), (1, 5)]) if order.index((0, 3)) < order.index((0, 5))],
)
def test_a_unit_of_which_one_host_connects_anew_in_a_round_is_in_it_with_what_all_hosts_answered_last(
    answers: tuple[tuple[int, int], ...],
) -> None:
    """Host 0 answered at step 3, and host 1 lost its part. Both are asked again, and answer at step 5. A host sends its
    answers in order."""
    story = Machine(RULES).tell(*(joined("a", host=host, hosts=2) for host in (0, 1)))
    round_id = story.tell(*(reported("a", n, 0.1) for n in (1, 2, 3))).round()
    story.tell(joined("a", host=1, hosts=2))
    assert [effect.round for effect in story.asked(SendPull)] == [round_id]
    events = [
        Received(Part("a", 1, host, 2, round_id, 0, n, 10 * n, n, n, 5 * host, 5 * host + 5, 10, 10 * n), 1.0)
        for host, n in answers
    ]
    story.tell(reported("a", 4, 0.1), reported("a", 5, 0.1), *events, Tick())
    merges = story.asked(Merge)
    assert [(member.unit, member.trained) for merge in merges for member in merge.members] == [("a", 50)]


def test_no_cut_but_the_final_one_has_the_targets_step() -> None:
    rules = replace(LONE, fragments=2, interval=2, overlap=2, target_steps=20, cut_interval=20)
    story = Story(rules, "a")
    story.merges = False  # the test gives it the results of merges and writes
    written: list[RoundId] = []
    while story.machine.orders.step < 20:
        story.tell(*map(Persisted, written))
        story.step("a")
        before = len(story.asked(Merge))
        story.tell(
            *(Received(story.part("a", each.fragment), 1.0) for each in story.machine.rounds.in_flight)
        )
        written = [each.round for each in story.asked(Merge)[before:]]
        story.tell(*(Merged(each) for each in written))
        story.tell(Tick(), now=story.now + 1.0)
    assert written, "a merge is written after the clock has come to the target"
    story.tell(*map(Persisted, written))
    assert story.asked(RecordCut) == []

"""How a run ends, or is suspended, when something changes on the way: the target, the shards, the units, the orders."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_scenario import Island, Scenario, Weather
from sim_shard import ShardProcess
from sim_world import World

from atoll_runtime.learner.mailbox import tell
from atoll_runtime.sync import clocks, restoring
from atoll_runtime.sync.events import (
    NO_CUT,
    CutEnded,
    CutId,
    CutOrdered,
    Effect,
    FinalCut,
    Heard,
    Joined,
    Marked,
    Merge,
    Merged,
    Part,
    Persisted,
    RecordCut,
    Remember,
    RememberJoin,
    Reported,
    RoundId,
    SendPull,
    ShardClock,
    Tick,
)
from atoll_runtime.sync.link import Link
from atoll_runtime.sync.machine import Syncer
from atoll_runtime.sync.pace import Pace
from atoll_runtime.sync.rules import Rules
from atoll_runtime.syncer.parts import Parts
from atoll_runtime.syncer.recovery import resumed
from atoll_runtime.transport.messages import PushHead, Stop

RULES = Rules(
    fragments=1,
    interval=1,
    overlap=1,
    quorum=1,
    grace_fraction=0.0,
    grace_steps=1.0,
    target_steps=20,
    target_tokens=None,
    cut_interval=1000,
)
SIZES = (10,)


class Story:
    """One machine, told one event after the other, a tenth of a second apart."""

    def __init__(self, machine: Syncer) -> None:
        self.machine, self.now, self.effects = machine, 0.0, list[Effect]()

    def tell(self, *events: object) -> Story:
        self.effects = []
        for event in events:
            self.now += 0.1
            self.effects += self.machine.handle(event, self.now)  # type: ignore[arg-type]
        return self

    def cuts(self) -> list[CutId]:
        return [effect.cut for effect in self.effects if isinstance(effect, RecordCut)]

    def vector(self) -> dict[str, int]:
        """Of the cut recorded last."""
        recorded = [effect for effect in self.effects if isinstance(effect, RecordCut)]
        return dict(recorded[-1].record["vector"])

    def remembered(self) -> dict[str, object]:
        """What stands in the journal."""
        last = [effect for effect in self.effects if isinstance(effect, Remember | RememberJoin)][-1]
        return dict(last.record) if isinstance(last, Remember) else self.machine.record()


def joined(unit: str, incarnation: int = 1, host: int = 0, hosts: int = 1, cut: CutId = NO_CUT) -> Joined:
    return Joined(unit, incarnation, host, hosts, 0, "", cut)


def reported(unit: str, step: int) -> Reported:
    return Reported(unit, 1, 0, step, step, 10 * step, 1.0, 0.1, step)


def part(round_id: RoundId, step: int, unit: str = "a", host: int = 0, hosts: int = 1) -> Part:
    share = 10 // hosts
    start, stop = host * share, (host + 1) * share
    return Part(unit, 1, host, hosts, round_id, 0, step, 10 * step, step, step, start, stop, 10, 10 * step)


def collecting(rules: Rules, hosts: int = 1) -> tuple[Story, RoundId]:
    """A machine with an open round that waits for unit a."""
    story = Story(Syncer.begin(rules, SIZES, [0]))
    story.tell(*(joined("a", host=host, hosts=hosts) for host in range(hosts)))
    story.tell(reported("a", 1), reported("a", 2), reported("a", 3))
    return story, next(iter(story.machine.rounds.held))


def test_a_shard_knows_of_a_unit_what_it_has_merged_of_it_and_not_what_it_heard_of_later_steps() -> None:
    """The final cut is recorded when the merge that was under way is durable; the unit trains on meanwhile."""
    story, round_id = collecting(replace(RULES, shard=1, shards=2, target_steps=100))
    story.tell(part(round_id, 3), Tick())
    assert any(isinstance(effect, Merge) for effect in story.effects)
    final = CutId(50, True)
    assert story.tell(Marked("a", 1, 0, final, 30), reported("a", 5)).cuts() == []
    assert story.tell(Merged(round_id, 0.0), Persisted(round_id)).cuts() == [final]
    assert story.vector() == {"shard/1": 1, "unit/a/1": 30}
    assert clocks.inconsistency({"shard/1": story.vector(), "unit/a/1": {"unit/a/1": 30}}) == ""
    assert "knows unit/a/1 at 30" in clocks.inconsistency(
        {"shard/1": story.vector(), "unit/a/1": {"unit/a/1": 20}}
    ), "what is merged and was trained after the mark is seen"


def test_a_final_cut_that_is_recorded_again_after_a_restart_agrees_with_the_marks_from_before_it() -> None:
    """The journal was written meanwhile for the heir of another unit, with later reports in it."""
    rules = replace(RULES, target_steps=1)
    story, round_id = collecting(rules)
    story.tell(joined("b"), part(round_id, 3), Tick(), Merged(round_id, 0.0), Persisted(round_id))
    final = story.cuts()[-1]
    assert final.final
    story.tell(Marked("a", 1, 0, final, 30), reported("a", 9), joined("b", incarnation=2))
    again = Story(restoring.restore(rules, SIZES, story.remembered()))
    assert again.tell(Tick()).cuts() == [final]
    vector = again.vector()
    again.tell(joined("a", cut=final), Marked("a", 1, 0, final, 30))
    marks = again.machine.cuts.clocks()
    assert marks == {"unit/a/1": {"unit/a/1": 30}} and vector["unit/a/1"] == 30
    assert clocks.inconsistency({"shard/0": vector, **marks}) == ""


def ending(rules: Rules = RULES) -> dict[str, object]:
    """The journal of a shard that has begun the final cut, which does not stand yet."""
    story = Story(Syncer.begin(rules, SIZES, [20], 20)).tell(Tick())
    assert story.cuts() == [CutId(21, True)]
    return story.remembered()


@pytest.mark.parametrize(
    "changed",
    [
        replace(RULES, target_steps=40),
        replace(RULES, target_steps=None, target_tokens=10**6),
        replace(RULES, target_steps=10),
    ],
    ids=["raised", "in-tokens", "lowered"],
)
def test_a_target_that_changes_before_the_final_cut_stands_is_the_target(changed: Rules) -> None:
    story = Story(resumed(changed, SIZES, ending(), lambda step: False)).tell(Tick())
    assert story.cuts() == [CutId(22)], "it takes the place of the final cut at every shard"
    assert story.tell(Tick()).cuts() == ([CutId(23, True)] if changed.target_steps == 10 else [])
    assert story.machine.finishing == (changed.target_steps == 10)


@pytest.mark.parametrize("stands", [True, False])
def test_a_target_that_changes_when_the_final_cut_stands_comes_too_late(stands: bool) -> None:
    """The shard was killed after it had written the manifest, and before it had noted that."""
    raised = replace(RULES, target_steps=40)
    story = Story(resumed(raised, SIZES, ending(), lambda step: stands and step == 21)).tell(Tick())
    assert story.cuts() == [CutId(21, True) if stands else CutId(22)]
    assert story.machine.finishing == stands
    again = Story(resumed(raised, SIZES, story.remembered(), lambda step: stands)) if not stands else story
    assert again.machine.outdated is False


def test_a_shard_that_is_started_first_with_the_raised_target_goes_on_when_the_other_one_does() -> None:
    new = replace(RULES, shards=2, target_steps=40)
    story = Story(Syncer.begin(replace(RULES, shard=1, shards=2), SIZES, [20], 20))
    record = story.tell(joined("a", cut=CutId(21, True))).remembered()
    machine = resumed(replace(new, shard=1), SIZES, record, lambda step: False)
    assert machine.finishing and machine.clock.ending == 0, "it is not at the end of the new target"
    assert Story(machine).tell(Tick()).cuts() == [CutId(21, True)], "shard 0 alone gives a final cut up"
    assert Story(machine).tell(joined("a", cut=CutId(22))).cuts() == [CutId(22)]
    assert not machine.finishing


@given(
    st.lists(
        st.tuples(st.integers(0, 30), st.integers(0, 2), st.sampled_from(["20 steps", "40 steps", ""])),
        max_size=12,
    )
)
def test_an_end_at_another_target_says_nothing_in_whatever_order_it_is_heard(told) -> None:
    pace = Pace(shard=1, interval=8, quorum=1, goal="40 steps")
    for step, level, goal in told:
        pace.hear("a", (ShardClock(step, level, goal), ShardClock(0, 0)), {"a"})
    assert pace.ahead == max((step for step, _, _ in told), default=0)
    mine = [level for _, level, goal in told if goal == "40 steps"]
    assert pace.all_end(2, 2) == (2 in mine)
    link = Link([0])
    for step, level, goal in told:
        link.told(ShardClock(step, level, goal))
    assert not told or (link.clock.ending, link.clock.goal) == told[-1][1:]


def test_learners_that_know_of_the_end_at_the_old_target_do_not_end_the_run_that_goes_on() -> None:
    old = [replace(RULES, shards=2, shard=s) for s in (0, 1)]
    machines = [Syncer.begin(rules, SIZES, [20], 20) for rules in old]
    ends = tuple(machine.clock for machine in machines)
    assert [clock.ending for clock in ends] == [2, 2]
    for machine, rules in zip(machines, old, strict=True):
        record = machine.record()
        story = Story(resumed(replace(rules, target_steps=40), SIZES, record, lambda step: False))
        assert story.tell(Heard("a", ends)).cuts() == []
        assert not story.machine.finishing
        assert story.machine.clock == ShardClock(20, 0, "40 steps, None tokens", cut=20)


def world(rules: Rules, saving: float, seed: int = 0) -> World:
    """Two units on a calm network; a save takes up to `saving` seconds."""
    islands = (Island("u0", 1, 1.0, 10), Island("u1", 2, 0.8, 10))
    return World(
        Scenario(seed, rules, (SIZES,) * rules.shards, islands, Weather(0.01, saving=saving), ((10**9, ""),))
    )


def processes(w: World) -> Iterator[ShardProcess]:
    for slot in w.shards:
        assert slot.process is not None
        yield slot.process


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_a_run_whose_target_is_raised_while_its_final_cut_is_saved_ends_at_the_new_one(
    shards: int, seed: int
) -> None:
    w = world(replace(RULES, shards=shards), saving=300.0, seed=seed)
    while not all(
        slot.process and slot.process.service and slot.process.machine.cuts.newest.final for slot in w.shards
    ):
        w.step()
    w.change_target(20)
    w.run_for(50)
    w.calm()
    w.run()
    assert [process.machine.step >= 40 for process in processes(w)] == [True] * shards
    assert w.bucket.newest() is not None and max(w.bucket.cuts) >= 40


@pytest.mark.parametrize("seed", range(2))
def test_a_shard_that_is_killed_while_it_saves_the_cut_of_a_suspension_is_asked_again_and_saves_it(
    seed: int,
) -> None:
    w = world(replace(RULES, shards=2, target_steps=60), saving=5.0, seed=seed)
    w.run_for(20)
    w.suspend()
    w.run_for(2.5)
    for slot in w.shards:
        w.crash(slot)
    w.calm()
    while w.suspension is not None:
        w.step()  # the world's own check: the newest cut holds what each shard holds
    assert w.bucket.newest() is not None
    w.run()


def test_an_ordered_cut_is_recorded_again_after_a_restart_while_nothing_was_merged_since() -> None:
    ordered = CutOrdered(CutId(25))
    story, round_id = collecting(replace(RULES, target_steps=100))
    record = story.tell(ordered).remembered()
    again = Story(restoring.restore(story.machine.rules, SIZES, record))
    assert again.tell(Tick()).cuts() == [] and again.machine.orderable == 25
    assert again.tell(ordered, ordered).cuts() == [CutId(25)], "once in a life"
    story.tell(part(round_id, 3), Tick(), Merged(round_id, 0.0), Persisted(round_id))
    later = Story(restoring.restore(story.machine.rules, SIZES, story.machine.committed))
    assert later.tell(ordered).cuts() == [] and later.machine.orderable == 26, (
        "it would hold more than it may"
    )
    again.tell(CutEnded(CutId(25), whole=False))
    assert again.tell(ordered).cuts() == [] and again.machine.orderable == 26, (
        "no shard waits for it any more"
    )


def test_an_order_does_not_take_the_place_of_the_final_cut_or_come_after_the_end() -> None:
    story = Story(Syncer.begin(RULES, SIZES, [20], 20)).tell(Tick())
    assert story.tell(CutOrdered(CutId(25))).cuts() == []
    assert story.machine.cuts.newest == CutId(21, True)
    story.tell(FinalCut("cut/21"))
    assert story.tell(CutOrdered(CutId(25)), joined("a", cut=CutId(30))).cuts() == []
    deferred, round_id = collecting(replace(RULES, shard=1, shards=2, target_steps=100))
    deferred.tell(part(round_id, 3), Tick(), Marked("a", 1, 0, CutId(50, True), 30))
    assert deferred.tell(CutOrdered(CutId(52))).cuts() == []
    assert deferred.tell(Merged(round_id, 0.0), Persisted(round_id)).cuts() == [CutId(50, True)]


def test_an_order_takes_the_place_of_a_final_cut_for_a_target_that_the_run_has_no_more() -> None:
    """No learner is left that could bring the shard the later cut which shard 0 has begun."""
    rules = replace(RULES, shard=1, shards=2)
    record = Story(Syncer.begin(rules, SIZES, [20], 20)).tell(joined("a", cut=CutId(21, True))).remembered()
    raised = replace(rules, target_steps=40)
    story = Story(resumed(raised, SIZES, record, lambda step: False)).tell(Tick())
    assert story.machine.orderable == 22, "the same step would be the final cut's"
    assert story.tell(CutOrdered(CutId(21))).cuts() == []
    assert story.tell(CutOrdered(CutId(22))).cuts() == [CutId(22)]
    assert not story.machine.finishing
    stood = Story(resumed(raised, SIZES, record, lambda step: True)).tell(Tick())
    assert stood.cuts() == [CutId(21, True)] and stood.machine.orderable == 21
    assert stood.tell(CutOrdered(CutId(22))).cuts() == [], "the run had ended before its target changed"


def test_a_final_cut_that_a_later_one_has_overtaken_is_begun_again() -> None:
    """The order came to a shard that did not know of the final cut."""
    story = Story(Syncer.begin(replace(RULES, shards=2), SIZES, [20], 20))
    level = ShardClock(20, 2, story.machine.rules.goal)
    assert story.tell(Heard("a", (level, level))).cuts() == [CutId(21, True)]
    assert story.tell(joined("a", cut=CutId(23))).cuts() == [CutId(23), CutId(24, True)]


def test_the_shard_that_begins_final_cuts_overtakes_one_that_it_has_forgotten_unless_it_is_at_its_end() -> (
    None
):
    behind = Story(Syncer.begin(RULES, SIZES, [5], 5))
    assert behind.tell(joined("a", cut=CutId(21, True))).cuts() == [CutId(22)]
    level = Story(Syncer.begin(replace(RULES, shards=2), SIZES, [20], 20))
    assert level.tell(joined("a", cut=CutId(21, True))).cuts() == [CutId(21, True)]


@pytest.mark.parametrize(
    "answers",
    [order for order in permutations([(0, 3), (0, 5), (1, 5)]) if order.index((0, 3)) < order.index((0, 5))],
)
def test_a_unit_of_which_one_host_connects_anew_in_a_round_is_in_it_with_what_all_hosts_answered_last(
    answers: tuple[tuple[int, int], ...],
) -> None:
    """Host 0 has answered at step 3, host 1 lost its part; both are asked again, and answer at step 5. A host sends its
    answers in their order."""
    story, round_id = collecting(RULES, hosts=2)
    story.tell(joined("a", host=1, hosts=2))
    assert [effect.round for effect in story.effects if isinstance(effect, SendPull)] == [round_id]
    events = [part(round_id, step, host=host, hosts=2) for host, step in answers]
    story.tell(reported("a", 4), reported("a", 5), *events, Tick())
    merges = [effect for effect in story.effects if isinstance(effect, Merge)]
    assert [(member.unit, member.trained) for merge in merges for member in merge.members] == [("a", 50)]


def test_a_part_that_takes_the_place_of_an_earlier_one_takes_its_bytes_too() -> None:
    parts = Parts(100)
    for step, size in ((3, 40), (5, 60)):
        head = PushHead("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 1, 0, 0, 0, size // 2, 30, step, "bf16", size)
        assert parts.reserve(head) == ""
        parts.hold(SimpleNamespace(head=head, body=memoryview(bytes(size))))  # type: ignore[arg-type]
    assert parts.used == 60
    parts.release(RoundId(1, 0, 0), None)
    assert parts.used == 0


def test_who_joins_after_a_shard_has_ended_carries_its_end_to_the_others() -> None:
    """A shard that lost its journal, and with it what it had heard, learns of the end in no other way."""
    link = Link([0])
    tell(link, Stop(11, ShardClock(11, 2, "11 steps"), CutId(11, True)))
    assert (link.clock, link.cut) == (ShardClock(11, 2, "11 steps"), CutId(11, True))
    older = Link([0], clock=ShardClock(9, 1, "11 steps"))
    tell(older, Stop(11))
    assert older.clock == ShardClock(9, 1, "11 steps")

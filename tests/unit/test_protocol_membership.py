"""Membership by headers: which units are in a round, and how long a round waits for a member's body."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from lone_shard import LONE, Story, joined, offered, reported

from atoll_runtime.protocol.effects import Merge, Publish, Release, SendPull
from atoll_runtime.protocol.events import Declined, Left, Received, Tick
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.protocol.messages import Part
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.shardview import PullRequest, ShardView
from atoll_runtime.protocol.waiting import waits

P = 4
RULES = replace(LONE, fragments=P, interval=P, overlap=2, grace_fraction=0.8, cut_interval=10**6)


class Shard(Story):
    """A shard that has just opened its first round, of fragment 1. Its units make and report a step a second."""

    def __init__(self, rules: Rules = RULES, units: str = "ab") -> None:
        super().__init__(rules, units)
        self.run(2)
        self.until_open(1)

    @property
    def merged(self) -> dict[int, tuple[str, ...]]:
        """Members of each fragment's newest merge."""
        merges = self.asked(Merge)
        return {each.round.fragment: tuple(member.unit for member in each.members) for each in merges}

    def offer(self, unit: str, p: int, seconds: float) -> Part:
        part = self.part(unit, p)
        self.tell(offered(part, seconds))
        return part

    def until_open(self, p: int, serve: bool = False) -> None:
        """Waits for a round of p. With `serve`, both units contribute to the rounds of other fragments meanwhile."""
        for _ in range(20):
            if any(each.fragment == p for each in self.machine.rounds.in_flight):
                return
            self.second(*(self.steps if serve else ()))
        raise AssertionError(f"no round of fragment {p}")

    def second(self, *units: str) -> None:
        """These units contribute to all rounds in flight, and a second passes."""
        for each in list(self.machine.rounds.in_flight):
            for unit in units:
                self.tell(Received(self.part(unit, each.fragment), 1.0))
        self.run(1)

    def awaited(self, part: Part) -> int:
        """Seconds until the shard does not wait for this body of a any more, while b contributes."""
        for seconds in range(50):
            if part.round not in self.machine.rounds.taking("a", 0):
                return seconds
            self.second("b")
        raise AssertionError(f"{part} is awaited for ever")


def test_units_that_are_no_members_are_told_at_once_and_need_not_fetch_what_lacks_their_work() -> None:
    shard = Shard()
    shard.tell(Received(shard.part("a", 1), 1.0))
    shard.tell(Received(shard.part("b", 1), 1.0))
    assert shard.merged[1] == ("a", "b")
    shard.until_open(1, serve=True)
    told = len(shard.effects)
    part = shard.offer("a", 1, 0.5)
    shard.run(3)
    assert Release(part.round, None, ("a",)) in shard.effects[told:]
    shard.tell(Received(part, 1.0))
    assert shard.merged[1] == ("a",)
    announced = [each for each in shard.effects[told:] if isinstance(each, Publish)]
    assert len(announced) == 1 and announced[0].leasts["b"] < announced[0].version == announced[0].leasts["a"]


@pytest.mark.parametrize(("skipped", "merged", "fetches"), [(0, 1, False), (0, 2, True), (1, 1, True)])
def test_a_unit_with_an_anchor_too_old_for_the_next_round_fetches_before_that_round_opens(
    skipped: int, merged: int, fetches: bool
) -> None:
    shard = Shard(replace(RULES, stale_intervals=2))
    for unit in ("a", "b"):
        shard.tell(Received(shard.offer(unit, 1, 0.5), 1.0))
    link = ShardView([0, shard.asked(Publish)[-1].version])
    for _ in range(skipped):
        shard.until_open(1, serve=True)
        shard.machine.rounds.discard(shard.round(1), "skipped")
    for _ in range(merged):
        shard.until_open(1, serve=True)
        shard.tell(Received(shard.offer("a", 1, 0.5), 1.0))
        shard.run(3)
        assert shard.merged[1] == ("a",)
        told = shard.asked(Publish)[-1]
        link.announced(1, told.version, told.leasts["b"])
    assert bool(link.wanted) == fetches


@pytest.mark.parametrize("expected", [0.0, 50.0], ids=["unknown", "far too long"])
def test_a_slow_link_that_answers_first_does_not_hold_the_others_up(expected: float) -> None:
    shard = Shard(replace(RULES, grace_fraction=0.0))
    slow = shard.offer("a", 1, expected)
    shard.run(1)
    quick = shard.offer("b", 1, 0.5)
    shard.tell(Received(quick, 1.0))
    shard.run(P, "b")
    assert shard.merged[1] == ("b",), "K is 1, and the body of a is not here"
    assert slow.round in shard.machine.rounds.taking("a", 0), "it counts in the fragment's next round"


@pytest.mark.parametrize("happening", ["it leaves", "it falls silent", "refused"])
def test_a_member_whose_body_does_not_come_is_dropped_and_the_others_are_merged(happening: str) -> None:
    shard = Shard(replace(RULES, interval=16 * P))
    lost, quick = shard.offer("a", 1, 20.0), shard.offer("b", 1, 0.5)
    shard.tell(Received(quick, 1.0))
    match happening:
        case "it leaves":
            shard.tell(Left("a", 1, 0))
            assert 1 not in shard.merged, "it may come back"
            shard.run(5, "b")
        case "refused":
            shard.tell(Declined(lost, "the outer gradient is not finite"))
        case "it falls silent":
            shard.run(int(RULES.silence) + 7, "b")
    shard.tell(Tick())
    assert shard.merged[1] == ("b",)
    assert Release(lost.round, "a") in shard.effects
    assert shard.machine.units["a"].dropped == 1


@pytest.mark.parametrize(
    ("told", "limits", "seconds", "taken"),
    [
        pytest.param(2.0 * P, {}, P, True, id="longer than an interval"),
        pytest.param(4.0, {"patience": 5.0}, 12, True, id="nearly twice what it said and the patience"),
        pytest.param(4.0, {"patience": 5.0}, 14, False, id="more than that"),
        pytest.param(
            0.0, {"transfer": 100.0}, 90, True, id="it said nothing, and any transfer takes as long"
        ),
    ],
)
def test_a_body_that_the_quorum_needs_is_awaited_by_what_its_sender_said(
    told: float, limits: dict[str, float], seconds: int, taken: bool
) -> None:
    shard = Shard(replace(RULES, quorum=2, **limits))
    needed = shard.offer("a", 1, told)
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    shard.run(seconds)
    if taken:
        shard.tell(Received(needed, 1.0))
        assert shard.merged[1] == ("a", "b")
    else:
        assert 1 not in shard.merged and shard.round(1).attempt == 1


def test_a_unit_that_connects_anew_is_not_asked_again_and_the_body_that_was_on_its_way_is_taken() -> None:
    shard = Shard()
    slow = shard.offer("a", 1, 2.0)
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    shard.tell(Left("a", 1, 0))
    asked = len(shard.asked(SendPull))
    shard.tell(joined("a"))
    shard.step("a")
    assert shard.machine.rounds.taking("a", 0) == (slow.round,)
    shard.run(1)
    assert 1 not in shard.merged and slow.round not in [pull.round for pull in shard.asked(SendPull)[asked:]]
    shard.tell(Received(slow, 1.0))
    assert shard.merged[1] == ("a", "b")


def test_a_host_goes_on_with_what_it_has_answered_when_the_next_session_says_that_it_is_still_wanted() -> (
    None
):
    link, (kept, over, unanswered) = ShardView([0, 0, 0]), [RoundId(4 + p, p, 0, "one") for p in range(3)]
    link.welcomed("one", [0, 0, 0], [0, 0, 0], NO_CUT)
    for each in (kept, over, unanswered):
        link.asked(each, 0)
    assert link.answered(kept) and link.answered(over)
    link.disconnected()
    assert link.open == {kept, over} and not link.answerable()
    link.welcomed("one", [0, 0, 0], [0, 0, 0], NO_CUT, taking=[kept])
    assert link.open == {kept}


@pytest.mark.parametrize("seconds", [0.1, 2.0 * P], ids=["it answers later", "its link is slow as well"])
def test_a_unit_that_answers_first_and_is_refused_each_time_does_not_shut_out_a_later_one(
    seconds: float,
) -> None:
    shard = Shard(replace(RULES, quorum=2, grace_fraction=0.0), units="abc")
    attempts = []
    while 1 not in shard.merged:
        attempts.append(shard.round(1))
        wrong, right = shard.offer("a", 1, 0.1), shard.offer("b", 1, 0.1)
        shard.run(1)
        late = shard.part("c", 1)
        shard.tell(offered(late, seconds))
        shard.tell(Received(right, 1.0))
        shard.tell(Received(wrong, math.inf))
        shard.run(3)
        if any(each == Release(late.round, None, ("a", "b", "c")) for each in shard.effects):
            shard.tell(Received(late, 1.0))
        shard.tell(Tick())
        assert len(attempts) < 5
    assert shard.merged[1] == ("b", "c")
    assert len(attempts) > 1, "in the first attempt it is shut out, for the window is short"


@pytest.mark.parametrize("told", [2.0 * P, 0.5], ids=["as its header says", "though its header says less"])
def test_a_body_that_comes_too_late_for_its_round_counts_in_the_next_round_of_its_fragment(
    told: float,
) -> None:
    shard = Shard()
    slow = shard.offer("a", 1, told)
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    shard.run(P + 1)
    assert shard.merged[1] == ("b",), "the fragment is due again"
    shard.until_open(1, serve=True)
    assert shard.round(1) != slow.round and shard.machine.rounds.taking("a", 0) == (slow.round,)
    shard.tell(Received(slow, 1.0))
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    assert shard.merged[1] == ("a", "b")
    merge = shard.asked(Merge)[-1]
    assert [member.tokens for member in merge.members if member.unit == "a"] == [slow.tokens]
    over = [each for each in shard.asked(Release) if each.of(slow.round, "a")]
    assert over == [Release(slow.round, "a")], "it is told once, when its work is merged"
    assert shard.machine.units["a"].dropped == 0
    published = shard.asked(Publish)[-1]
    assert published.leasts == dict.fromkeys(("a", "b"), published.version)


@pytest.mark.parametrize(
    ("fragments", "told", "members"),
    [
        (P, P - 1.5, ()),
        (P, P - 0.5, ("b",)),
        (2, P - 2.5, ()),
        (2, P - 1.5, ("b",)),
    ],
)
def test_a_body_is_not_awaited_for_so_long_that_the_version_comes_too_late_for_the_next_round(
    fragments: int, told: float, members: tuple[str, ...]
) -> None:
    """A fetch may take as long as the time between two rounds."""
    shard = Shard(replace(RULES, fragments=fragments))
    shard.offer("a", 1, told)
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    assert shard.merged.get(1, ()) == members


@pytest.mark.parametrize(
    ("told", "least", "most", "merges"),
    [
        pytest.param(
            2.0 * P, 4 * P + 5, 6 * P + 5, 4, id="twice the time that its header says, and patience"
        ),
        pytest.param(0.0, 2 * P - 1, 2 * P + 1, 1, id="two intervals if its host does not know its link"),
    ],
)
def test_a_late_body_is_carried_from_round_to_round_until_its_time_is_over(
    told: float, least: int, most: int, merges: int
) -> None:
    shard = Shard(replace(RULES, patience=5.0))
    slow = shard.offer("a", 1, told)
    assert least <= shard.awaited(slow) <= most
    published = [each for each in shard.asked(Publish) if each.fragment == 1]
    assert len(published) >= merges, "others are merged meanwhile"
    assert Release(slow.round, "a") in shard.effects
    assert shard.machine.units["a"].dropped == 1
    merged = [merge.round for merge in shard.asked(Merge) if merge.round.fragment == 1]
    ended = [each.round for each in shard.asked(Release) if each.of(each.round, "a")]
    assert set(merged) <= set(ended), "it is told of the end of each round that it did not answer"


def test_a_host_does_not_answer_another_round_of_a_fragment_while_its_last_answer_still_counts() -> None:
    link, (first, second) = ShardView([0]), [RoundId(step, 0, 0, "one") for step in (4, 8)]
    link.welcomed("one", [0], [0], NO_CUT)
    link.asked(first, 0)
    assert link.answered(first)
    link.asked(second, 0)
    assert not link.answerable()
    link.over(first)
    assert [ask.round for ask in link.answerable().values()] == [second]


def test_a_host_answers_a_round_at_the_step_at_which_it_adopts_the_version_that_this_one_asks_for() -> None:
    link = ShardView(held=[2])
    link.welcomed("lineage", [4], [4], NO_CUT)
    ask = PullRequest(RoundId(6, 0, 0, "s"), 4)
    link.asked(ask.round, ask.least)
    fetch_task = link.fetch_task()
    assert fetch_task is not None and not link.answerable()
    assert link.fetched(fetch_task, 4, NO_CUT)
    assert link.adopted == [2] and link.answerable() == {0: ask}


def test_a_round_is_not_opened_where_there_is_no_memory_for_it_beyond_those_at_work() -> None:
    shard = Shard(replace(RULES, overlap=1))
    shard.machine.rounds.capacity = 2 * 2 * 10
    waiting: list[Any] = [shard.offer("a", 1, 3.0), shard.offer("b", 1, 3.0)]
    shard.until_open(2)
    shard.offer("a", 2, 3.0), shard.offer("b", 2, 3.0)
    shard.run(2)
    assert {held.fragment for held in shard.machine.rounds.in_flight} == {1, 2}
    for part in waiting:
        shard.tell(Received(part, 1.0))
    shard.until_open(3)


def test_a_failed_round_leaves_its_memory_to_another_if_there_is_too_little_since_a_unit_joined() -> None:
    shard = Shard(replace(RULES, quorum=3), "abc")
    shard.until_open(2)
    shard.machine.rounds.capacity = 2 * 3 * 10
    shard.join("d")
    shard.run(60)
    (left,) = shard.machine.rounds.in_flight
    for unit in "abd":
        shard.tell(Received(shard.part(unit, left.fragment), 1.0))
    shard.run(5, "abd")
    assert shard.merged[left.fragment] == ("a", "b", "d")


def test_tokens_that_wait_for_a_link_are_listed_with_what_they_wait_for_and_since_when() -> None:
    shard = Shard()
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    shard.run(2)
    assert shard.merged[1] == ("b",)
    a, b = (shard.machine.units[name] for name in "ab")
    (passed,) = [each for each in waits(shard.machine, a) if each.fragment == 1]
    assert (passed.since, passed.tokens) == (1, a.account.position)
    assert passed.what == "its work waits for its next answer: it is a member of no round since this one"
    a.link_is(0, 2.5)
    assert "its turn, one round in 2.5" in next(iter(waits(shard.machine, a))).what
    a.link_is(0, 1.0)
    assert not [each for each in waits(shard.machine, b) if each.fragment == 1]
    shard.until_open(1, serve=True)
    sending = shard.offer("a", 1, 3.0)
    shard.tell(Received(shard.offer("b", 1, 0.5), 1.0))
    (carried,) = [each for each in waits(shard.machine, a) if each.fragment == 1]
    assert carried.since == sending.round.step and "its link" in carried.what
    shard.tell(Received(sending, 1.0))
    assert not [each for each in waits(shard.machine, a) if each.fragment == 1]


def test_a_unit_that_joined_late_has_missed_no_round_before_that() -> None:
    shard = Shard()
    for _ in range(2):
        shard.until_open(1, serve=True)
        shard.second("a", "b")
    assert set(shard.merged) == set(range(P))
    shard.join("c")
    shard.step("c")
    late = shard.machine.units["c"]
    assert late.account.position and list(waits(shard.machine, late)) == []


def test_all_tokens_in_flight_of_a_unit_without_a_session_are_listed() -> None:
    shard = Shard()
    for _ in range(2):
        shard.until_open(1, serve=True)
        shard.second("a", "b")
    a = shard.machine.units["a"]
    assert list(waits(shard.machine, a)) == []
    shard.tell(Left("a", 1, 0))
    listed = list(waits(shard.machine, a))
    assert sum(each.tokens for each in listed) == a.account.in_flight > 0
    (first,) = [each for each in listed if each.fragment == 1]
    assert first.since == shard.machine.versions[1] and "session" in first.what


def carried(shard: Shard) -> tuple[Part, Part]:
    """Both units have answered a round. The body of `a` will be carried over; the round waits for that of `b`."""
    return shard.offer("a", 1, 2.0 * P), shard.offer("b", 1, 0.5)


@pytest.mark.parametrize("here", [True, False], ids=["whose body is here", "whose body is on its way"])
def test_another_answer_to_its_pull_leaves_a_contribution_that_was_carried_over_or_ends_it_whole(
    here: bool,
) -> None:
    shard = Shard()
    slow, _ = carried(shard)
    if here:
        shard.tell(Received(slow, 1.0))
    again = replace(slow, steps=slow.steps + 1, tokens=slow.tokens + 10, trained=slow.trained + 10)
    shard.tell(offered(again, 0.5))
    released = Release(slow.round, "a") in shard.effects
    assert shard.machine.rounds.taking("a", 0) == (() if released else (slow.round,))
    assert released is not here


def test_an_answer_to_the_next_round_takes_the_place_and_the_memory_of_what_was_carried_over() -> None:
    shard = Shard()
    slow, near = carried(shard)
    shard.tell(Received(near, 1.0))
    shard.until_open(1, serve=True)
    assert shard.machine.rounds.taking("a", 0) == (slow.round,)
    newer = shard.offer("a", 1, 0.5)
    assert Release(slow.round, "a") in shard.effects
    assert shard.machine.rounds.taking("a", 0) == (newer.round,) != (slow.round,)


def test_a_contribution_that_is_carried_over_counts_though_its_anchor_has_become_too_old() -> None:
    story = Story(replace(LONE, interval=10, stale_intervals=1), "ab")
    story.run(10)
    slow, near = story.part("a"), story.part("b")
    story.tell(offered(slow, 6.0), offered(near, 0.5), Received(near, 1.0))
    story.run(10)
    assert story.round().step - slow.anchor > story.machine.rules.interval
    story.tell(Received(slow, 1.0), Received(story.part("b"), 1.0))
    assert [member.unit for member in story.asked(Merge)[-1].members] == ["a", "b"]


def test_a_unit_that_was_told_to_go_on_without_a_round_has_no_part_in_it_until_it_is_asked_again() -> None:
    """Its hosts have dropped their answer, so a header that was under way at that time has no body."""
    shard = Shard(replace(RULES, quorum=2))
    part = shard.part("a", 1)
    shard.tell(Declined(part, "no memory"))
    shard.tell(offered(part, 0.5))
    assert shard.machine.rounds.taking("a", 0) == ()
    assert [each for each in shard.asked(Release) if each.of(part.round, "a")] == [Release(part.round, "a")]
    shard.tell(joined("a"), reported("a", shard.steps["a"]), now=shard.now + 0.1)
    answer = shard.offer("a", 1, 0.5)
    assert shard.machine.rounds.taking("a", 0) == (answer.round,)


def test_at_the_end_a_round_that_no_unit_will_answer_is_given_up_at_once() -> None:
    """Also one that was opened again and rests, because its unit declined it."""
    story = Story(replace(RULES, fragments=2, interval=2, target_steps=2), "a")
    story.run(2)
    story.tell(Declined(story.part("a", 1), "no memory"), Tick())
    assert story.machine.finishing and [each.attempt for each in story.machine.rounds.in_flight] == [1, 0]
    assert not story.tell(Left("a", 1, 0)).machine.rounds.in_flight


@pytest.mark.parametrize("slow", [0, 1])
def test_a_unit_may_answer_as_late_as_the_slowest_link_of_its_hosts_makes_it_whichever_says_so_last(
    slow: int,
) -> None:
    shard = Shard(replace(RULES, interval=16 * P))
    shard.tell(joined("a", host=0, hosts=2), joined("a", host=1, hosts=2))
    shard.step("a")
    whole = shard.part("a", 1, hosts=2)
    for host, part in enumerate((replace(whole, stop=5), replace(whole, host=1, start=5))):
        shard.tell(offered(part, 0.5, 3.0, 10.0) if host == slow else offered(part, 0.5, 0.2, 0.0))
    unit, step = shard.machine.units["a"], shard.machine.step
    assert shard.machine.rounds.leads() == {"a": 3}, "the host furthest away answers last"
    assert not shard.machine.rounds.versions[1].owes(unit), "its turn comes in eight rounds at the earliest"
    versions = shard.machine.rounds.versions[1]
    versions.history.append(step)
    old = 10 * 8 * shard.machine.rules.interval
    assert versions.least(unit, old, shard.machine.rules) == 0, "ten times as old as on a fast link"
    assert versions.least(unit, old + 1, shard.machine.rules) == step


def test_the_next_attempt_of_a_round_below_its_quorum_does_not_wait_for_a_body_that_is_on_its_way() -> None:
    shard = Story(replace(LONE, quorum=2), "ab")
    shard.run(3)
    for attempt in (0, 1):
        assert shard.round().attempt == attempt
        shard.tell(offered(shard.part("a"), 20.0), offered(shard.part("b"), 0.5))
        shard.tell(Received(shard.part("b"), math.inf))
    assert shard.wake == shard.now + 1.0, "the attempt rests for a step"
    shard.tell(Tick(), now=shard.wake)
    assert shard.round().attempt == 2

"""How shards divide the fragments, keep level, and agree that a cut is consistent; and the ledger's arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.sync import clocks, ledger
from atoll_runtime.sync.events import CLOCK_ZERO, ShardClock
from atoll_runtime.sync.fragments import LayoutError, TensorInfo, build_layout, translate
from atoll_runtime.sync.ledger import FINISHED, MISSED, OVERWRITTEN, REPLACED, Account, Span
from atoll_runtime.sync.pace import Pace

TENSORS = [
    TensorInfo("embedding/table", (64, 8), stacked=False, embedding=True),
    TensorInfo("final/norm", (8,), stacked=False, embedding=False),
    *(TensorInfo(f"layers/{name}", (6, 8, width), True, False) for name, width in (("q", 8), ("up", 24))),
]


@given(st.integers(1, 6), st.integers(1, 8))
def test_each_piece_belongs_to_one_shard_whole_and_to_the_same_fragment_whatever_the_number_of_shards(
    fragments: int, shards: int
) -> None:
    whole, cut = build_layout(TENSORS, fragments), build_layout(TENSORS, fragments, shards)
    assert cut.fingerprint == whole.fingerprint and cut.width == fragments
    for p, fragment in enumerate(whole.fragments):
        dealt = [piece for s in range(shards) for piece in cut.shard(s).fragments[p].pieces]
        assert sorted(map(repr, dealt)) == sorted(map(repr, fragment.pieces))
    assert cut.split(1).fragments == whole.fragments
    assert [cut.shard(s).size for s in range(shards)] == [
        cut.split(shards).shard(s).size for s in range(shards)
    ]


def test_shards_are_balanced_and_more_shards_than_pieces_are_refused() -> None:
    sizes = [build_layout(TENSORS, 4, 3).shard(s).size for s in range(3)]
    assert max(sizes) <= 4 / 3 * sum(sizes) / 3
    with pytest.raises(LayoutError, match=r"syncer.shards: 15 does not fit this model, which has 14 pieces"):
        build_layout(TENSORS, 4, 15)


def test_versions_are_carried_to_another_number_of_shards_and_are_the_cuts_where_pieces_differ() -> None:
    old, new = build_layout(TENSORS, 2, 2), build_layout(TENSORS, 2, 3)
    level = translate((8, 9, 8, 9), old, new, step=10)
    assert set(zip((q % 2 for q in range(6)), level, strict=True)) <= {(0, 8), (1, 9), (0, 0), (1, 0)}
    apart = translate((8, 9, 6, 9), old, old.split(1), step=10)
    assert apart == (10, 9), "what is part of one version and part of another is named by the cut"


def test_a_shard_that_is_behind_skips_to_an_interval_behind_the_others_and_takes_that_without_pacing() -> (
    None
):
    pace = Pace(shard=1, interval=8, quorum=1, step=3, last=50.0)
    pace.hear("a", (ShardClock(100, 0), ShardClock(999, 2)), {"a"})
    assert pace.ahead == 100, "what others say of itself is nothing new"
    taken = []
    while pace.behind:
        assert pace.may_advance(now=10.0, seconds=1.0)
        taken.append(pace.advance(now=10.0, seconds=1.0))
    assert taken == list(range(93, 101))
    pace.advance(now=10.0, seconds=1.0)
    assert not pace.may_advance(10.5, seconds=1.0) and pace.may_advance(11.0, seconds=1.0)
    pace.hear("a", (ShardClock(90, 0), ShardClock(0, 0)), {"a"})
    assert pace.ahead == 100, "nothing goes back"


GOAL = "1000 steps, None tokens"


def heard(pace: Pace, unit: str, word: ShardClock, live: str = "abc") -> tuple[int, int, int]:
    """What is then believed of shard 0: step, ending, cut."""
    pace.hear(unit, (word, ShardClock(0, 0, GOAL)), set(live))
    clock = pace.believed[0]
    return clock.step, clock.ending, clock.cut


@pytest.mark.parametrize(
    "word",
    [
        ShardClock(109, 0, GOAL),
        ShardClock(10**9, 0, GOAL),
        ShardClock(50, 2, GOAL),
        ShardClock(1, 0, GOAL, 700),
    ],
    ids=["leap", "far", "end", "cut"],
)
def test_no_single_learner_of_several_makes_a_shard_leap_or_end_and_two_of_them_do(word: ShardClock) -> None:
    pace = Pace(shard=1, interval=8, quorum=2, step=100, goal=GOAL)
    before = word.step if word.step < 100 else 0, 0, 0
    assert heard(pace, "a", word) == before
    assert heard(pace, "a", word) == before, "however often it says so"
    assert pace.all_end(2, 2) == (word.ending == 2), (
        "where this one is at its end, one that sees the others is enough"
    )
    assert heard(pace, "b", ShardClock(101, 0, GOAL))[0] == 101, "what is near is news from anybody"
    assert heard(pace, "c", word) == (max(101, word.step), word.ending, word.cut)


def test_where_one_learner_is_enough_it_is_believed_alone_once_it_lives_and_nobody_contradicts() -> None:
    pace, word = Pace(shard=1, interval=8, quorum=1, step=100, goal=GOAL), ShardClock(900, 2, GOAL)
    assert heard(pace, "b", ShardClock(101, 0, GOAL), live="") == (101, 0, 0)
    assert heard(pace, "a", word, live="") == (101, 0, 0), "another one may say otherwise when it lives"
    assert heard(pace, "a", word) == (101, 0, 0)
    assert heard(pace, "a", word, live="a") == (900, 2, 0)


def test_after_a_restart_one_learners_word_waits_for_a_second_live_one() -> None:
    """No unit lives until its second report: the first one would stand alone."""
    pace, word = Pace(shard=1, interval=8, quorum=2, step=100, goal=GOAL), ShardClock(900, 2, GOAL)
    assert heard(pace, "a", word, live="") == (0, 0, 0)
    assert heard(pace, "a", word, live="a") == (0, 0, 0), "no round opens with so few"
    assert heard(pace, "b", ShardClock(101, 0, GOAL), live="a") == (101, 0, 0)
    assert heard(pace, "a", word, live="ab") == (101, 0, 0)
    assert heard(pace, "c", word, live="ab") == (101, 0, 0), "it does not live yet"
    assert heard(pace, "a", word) == (900, 2, 0), "what was told is looked at again"


def test_a_learner_that_has_not_reached_another_shard_does_not_contradict_one_that_has() -> None:
    pace, word = Pace(shard=1, interval=8, quorum=1, step=100, goal=GOAL), ShardClock(900, 0, GOAL, 800)
    pace.hear("b", (CLOCK_ZERO, CLOCK_ZERO), set("abc"))
    assert heard(pace, "a", word) == (900, 0, 800)
    began = Pace(shard=1, interval=8, quorum=1, step=100, goal=GOAL)
    heard(began, "b", ShardClock(0, 0, GOAL))
    assert heard(began, "a", word) == (0, 0, 0), "b has seen that shard, at its beginning"


def test_the_further_of_two_learners_leads_a_shard_no_further_than_the_other_one() -> None:
    pace = Pace(shard=1, interval=8, quorum=2, step=100, goal=GOAL)
    heard(pace, "a", ShardClock(10**9, 2, GOAL))
    assert heard(pace, "b", ShardClock(900, 1, GOAL)) == (900, 1, 0)
    assert pace.following() == 893


def test_a_cut_is_consistent_when_nobody_knows_more_of_a_party_than_it_recorded_of_itself() -> None:
    shard, unit = {"shard/0": 40, "unit/a/1": 700}, {"unit/a/1": 700}
    assert clocks.inconsistency({"shard/0": shard, "unit/a/1": unit}) == ""
    late = {"unit/a/1": 690}
    assert clocks.inconsistency({"shard/0": shard, "unit/a/1": late}) == (
        "shard/0 knows unit/a/1 at 700, which recorded itself at 690"
    )


def test_a_token_is_in_flight_then_merged_overwritten_or_missed() -> None:
    account = Account(owned=(0,))
    account.advance(300)
    assert (account.trained, account.in_flight) == (300, 300)
    account.freeze(0, Span(0, 0, 100))
    account.merge(0, kept_up=False)
    account.freeze(0, Span(0, 130, 250))
    account.merge(0, kept_up=True)
    account.freeze(0, Span(0, 260, 300))
    account.merge(0, kept_up=False)
    assert account.merged == 100 + 120 + 40
    assert account.discarded == {OVERWRITTEN: 30, MISSED: 10}
    assert account.in_flight == 0 and account.balanced


def test_what_is_being_merged_when_its_incarnation_is_replaced_still_counts_and_the_rest_is_lost() -> None:
    account = Account(owned=(0, 1), incarnation=1)
    account.advance(100)
    account.freeze(0, Span(1, 20, 80))
    account.replace(2)
    assert account.discarded == {REPLACED: 140} and account.in_flight == 60 and account.balanced
    crashed = Account.restore((0, 1), account.record())
    assert crashed.discarded == {REPLACED: 200} and crashed.in_flight == 0 and crashed.balanced
    account.merge(0, kept_up=False)
    assert account.merged == 60 and account.in_flight == 0 and account.balanced
    account.advance(7)
    account.finish()
    assert account.discarded == {REPLACED: 140, FINISHED: 14} and account.balanced


def test_accounts_of_two_shards_are_carried_into_three_in_whole_tokens() -> None:
    old = [Account(owned=(0, 1), incarnation=4), Account(owned=(0,), incarnation=4)]
    for account in old:
        account.advance(90)
        account.freeze(0, Span(4, 0, 60))
        account.merge(0, kept_up=False)
    record = ledger.carried([account.record() for account in old], owned=5)
    account = Account.restore((0, 1, 2, 3, 4), record)
    assert account.merged == 5 * (120 // 3) and account.trained == 5 * 90 and account.balanced
    assert account.discarded == {REPLACED: 5 * 50} and account.incarnation == 4

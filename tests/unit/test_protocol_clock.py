"""How shards divide the fragments and keep level; and the ledger's arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lone_shard import LONE, Story, joined

from atoll_runtime.protocol import ledger
from atoll_runtime.protocol.effects import Tell
from atoll_runtime.protocol.events import Received, ShardTold, Tick
from atoll_runtime.protocol.fragments import LayoutError, TensorInfo, build_layout, translate
from atoll_runtime.protocol.ledger import FINISHED, REPLACED, Account, Span
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Orders, Standing
from atoll_runtime.protocol.restoring import begin

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


def test_more_shards_than_pieces_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"syncer.shards: 15 does not fit this model, which has 14 pieces"):
        build_layout(TENSORS, 4, 15)


def test_versions_are_carried_to_another_number_of_shards_and_are_the_cuts_where_pieces_differ() -> None:
    old, new = build_layout(TENSORS, 2, 2), build_layout(TENSORS, 2, 3)
    level = translate((8, 9, 8, 9), old, new, step=10)
    assert set(zip((q % 2 for q in range(6)), level, strict=True)) <= {(0, 8), (1, 9), (0, 0), (1, 0)}
    apart = translate((8, 9, 6, 9), old, old.split(1), step=10)
    assert apart == (10, 9), "what is part of one version and part of another is named by the cut"


def steps(machine: Syncer, now: float) -> list[int]:
    """The steps of the clock at this moment, until it has to wait."""
    taken = [machine.step]
    while machine.handle(Tick(), now) and machine.step > taken[-1]:
        taken.append(machine.step)
    return taken


def test_a_shard_that_was_away_skips_whole_intervals_and_takes_the_last_without_pacing() -> None:
    machine = begin(replace(LONE, interval=8, shard=1, shards=2), (10,), [3], 3)
    machine.handle(joined("a"), 0.0)  # its unit reports to shard 0 alone
    assert steps(machine, 9.0) == [3], "shard 0 has not told it"
    machine.handle(Orders(step=100), 10.0)
    assert steps(machine, 10.0) == list(range(92, 101))
    assert steps(machine, 1000.0) == [100], "the clock stands where shard 0 is silent"
    (held,) = machine.rounds.in_flight
    assert held.step == 96, "in an interval each fragment is due once"


def test_a_shard_that_is_always_slower_than_the_clock_merges_each_of_its_fragments() -> None:
    """Each of its rounds takes two steps of the clock, so it opens only half of them."""
    rules = replace(LONE, fragments=2, interval=2, shard=1, shards=2)
    story = Story(rules, "a")
    for clock in range(1, 41):
        story.steps["a"] = clock
        story.tell(Orders(step=clock, seconds=1.0), now=float(clock))
        if clock % 2 == 0:
            (held,) = story.machine.rounds.in_flight
            story.tell(Received(story.part("a", held.fragment), 1.0))
    assert min(story.machine.versions) > 30


def test_the_pace_is_known_while_a_shard_0_that_has_restarted_does_not_know_it_yet() -> None:
    story = Story(replace(LONE, interval=8, shard=1, shards=2), "a")
    story.tell(Orders(step=1, seconds=2.0, fastest=1.0), Orders(step=1))
    assert story.machine.rounds.interval_seconds == 16.0 and story.machine.rounds.fastest == 1.0


def test_shard_0_that_lost_its_volume_goes_on_from_the_clock_that_it_had_told_the_others() -> None:
    machine = begin(replace(LONE, shards=2), (10,), [3], 3)
    machine.handle(ShardTold(1, Standing(90, False, machine.cuts.newest)), 1.0)
    assert machine.orders.step == 90 and machine.record()["clock"] == 90
    machine.handle(ShardTold(1, Standing(80, False, machine.cuts.newest)), 1.0)
    assert machine.orders.step == 90, "nothing goes back"


def test_what_is_being_merged_when_its_incarnation_is_replaced_still_counts_and_the_rest_is_lost() -> None:
    account = Account(owned=(0, 1), incarnation=1)
    account.advance(100)
    account.freeze(0, Span(1, 20, 80))
    account.replace(2)
    assert account.discarded == {REPLACED: 140} and account.in_flight == 60 and account.balanced
    crashed = account.durable
    assert crashed.discarded == {REPLACED: 200} and crashed.in_flight == 0 and crashed.balanced
    account.merge(0)
    assert account.merged == 60 and account.in_flight == 0 and account.balanced
    account.advance(7)
    account.finish()
    assert account.discarded == {REPLACED: 140, FINISHED: 14} and account.balanced


def test_accounts_of_two_shards_are_carried_into_three_in_whole_tokens() -> None:
    old = [Account(owned=(0, 1), incarnation=4), Account(owned=(0,), incarnation=4)]
    for account in old:
        account.advance(90)
        account.freeze(0, Span(4, 0, 60))
        account.merge(0)
    account = ledger.carried(old, owned=(0, 1, 2, 3, 4))
    assert account.merged == 5 * (120 // 3) and account.trained == 5 * 90 and account.balanced
    assert account.discarded == {REPLACED: 5 * 50} and account.incarnation == 4


def test_another_shard_learns_at_once_that_a_unit_of_which_it_was_told_that_it_is_silent_is_a_fast_one() -> (
    None
):
    """The unit's contributions may reach it before the clock, which a slow unit sets, advances."""
    story = Story(replace(LONE, shards=2, guard=True, slow_factor=4.0), "ab")
    for _ in range(2):  # the first report tells no pace, the second one that is not steady
        story.step("b", 0.5)
    for _ in range(8):
        story.now += 5.0
        story.step("a", 5.0)
    orders = [each.news for each in story.asked(Tell) if isinstance(each.news, Orders)]
    assert (orders[-1].silent, orders[-1].fastest) == ((("b", 1),), 5.0)
    story.effects.clear()
    story.step("b", 0.5)
    [told] = [each.news for each in story.asked(Tell)]
    assert isinstance(told, Orders) and (told.silent, told.fastest) == ((), 0.5)

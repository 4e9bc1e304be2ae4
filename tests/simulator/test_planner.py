"""The planner: steps, traffic, heals, goodput and knobs of a run, against sums that can be done by hand."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.contract import (
    SIZES,
    CommunicationSpec,
    GraceSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    TargetSpec,
)
from atoll_runtime.model import describe
from atoll_runtime.simulate.planner.choices import choose, points_lost
from atoll_runtime.simulate.planner.estimate import below, below_while_living, expect, link_need, living
from atoll_runtime.simulate.planner.merging import on_their_links
from atoll_runtime.simulate.planner.needs import (
    ELEMENT_BYTES,
    HELD_ROUNDS,
    LEAST_SECONDS,
    PROCESS_BYTES,
    global_step,
    heal_of,
    shard_need,
    stages,
    step_of,
)
from atoll_runtime.simulate.planner.run import Assumptions, Pool, Run
from atoll_runtime.syncer.journal import STATES

HOUR, DAY = 3600.0, 86_400.0
BILLION = tuple(describe(ModelSpec(preset="1b")))
V6E = Pool(name="v6e", generation="v6e", units=4, chips=16, batch=128, sizes=(1, 4, 8, 16, 32, 64))
V5E = Pool(name="v5e", generation="v5e", units=4, chips=16, batch=64, sizes=(1, 4, 8, 16, 32, 64))
RUN = Run(
    name="run",
    tensors=BILLION,
    sequence_length=2048,
    pools=(V6E, V5E),
    outer=OuterSpec(),
    communication=CommunicationSpec(),
    quorum=QuorumSpec(),
    checkpoint_steps=500,
    target=TargetSpec(tokens=20_000_000_000),
)
USUAL = Assumptions()
OFTEN = Assumptions(mtbi=DAY)
"""Each chip once a day: a unit of 16 every hour and a half, and away for eleven minutes."""


def split_of(run: Run, units: int) -> Run:
    """One pool of so many units, 64 chips in all."""
    pool = replace(V6E, units=units, chips=64 // units, batch=512 // units, sizes=(1, 2, 4, 8, 16, 32, 64))
    return replace(run, pools=(pool,))


def test_a_step_takes_its_flops_over_what_the_chips_reach_but_no_less_than_its_host() -> None:
    tokens = 128 * 2048
    step = step_of(V6E, RUN, replace(USUAL, mfu=0.5))
    assert (step.tokens, step.source) == (tokens, "compute")
    assert step.seconds == pytest.approx(6 * RUN.parameters * tokens / (16 * 918e12 * 0.5))
    small = step_of(V6E, replace(RUN, tensors=tuple(describe(ModelSpec(preset="1m")))), USUAL)
    assert (small.seconds, small.source) == (LEAST_SECONDS, "least")


def test_a_pool_of_few_units_that_are_far_too_slow_does_not_set_the_clock() -> None:
    run = replace(RUN, pools=(V6E, replace(V5E, units=1)))
    assumed = replace(USUAL, step_seconds={"v6e": 1.0, "v5e": 9.0})
    assert global_step(run, assumed) == expect(run, assumed).step_seconds == 1.0
    assert global_step(replace(run, outer=OuterSpec(guard=False)), assumed) == 9.0


def test_a_peers_state_is_there_sooner_and_is_of_now_and_a_spare_slice_saves_the_wait_for_hardware() -> None:
    bucket, peer = (heal_of(replace(RUN, seed=seed), 1.0, USUAL) for seed in ("Checkpoint", "Peer"))
    narrow = heal_of(replace(RUN, communication=CommunicationSpec(codec="int8")), 1.0, USUAL)
    assert RUN.seed == "Checkpoint" and narrow.catch_up < bucket.catch_up
    assert peer.restore < bucket.restore
    assert bucket.catch_up > peer.catch_up == 1.0
    usual, spare = (
        stages(heal_of(RUN, 1.0, replace(USUAL, repair_seconds=repair)), repair) for repair in (600.0, 0.0)
    )
    assert usual["detect"] + usual["schedule"] + usual["hardware"] == 600.0
    assert (spare["hardware"], spare["pull"]) == (0.0, 0.0)
    assert usual["total"] - spare["total"] == usual["hardware"] + usual["pull"]


shares = st.lists(st.tuples(st.integers(1, 3), st.floats(0, 1)), min_size=1, max_size=3)


@given(shares)
def test_living_units_are_counted_as_by_listing_every_case(pools: list[tuple[int, float]]) -> None:
    each = [share for units, share in pools for _ in range(units)]
    listed = [0.0] * (len(each) + 1)
    for case in itertools.product((False, True), repeat=len(each)):
        listed[sum(case)] += math.prod(
            share if lives else 1 - share for share, lives in zip(each, case, strict=True)
        )
    assert living(pools) == pytest.approx(listed, abs=1e-12)


@given(shares, st.integers(1, 9))
def test_a_unit_that_lives_is_one_of_the_quorum(pools: list[tuple[int, float]], quorum: int) -> None:
    """Too few live: this unit lives among too few, or it is away and too few live without it."""
    units, share = pools[0]
    rest = [(units - 1, share), *pools[1:]]
    alone = below_while_living(pools, quorum, 0)
    assert below(pools, quorum) == pytest.approx(share * alone + (1 - share) * below(rest, quorum), abs=1e-9)


def test_every_chip_hour_is_useful_or_lost_to_a_cause() -> None:
    expected = expect(RUN.turned(quorum=7), OFTEN)
    for each, chips in ((expected, RUN.chips), *((pool, pool.chips) for pool in expected.pools)):
        lost = each.lost_chip_hours_per_day
        assert each.goodput * chips * 24 + sum(lost.values()) == pytest.approx(chips * 24)
        assert lost["below_quorum"] > 0


def test_goodput_of_one_unit_is_its_share_of_time_between_two_heals() -> None:
    """Closed form: mean time between interruptions T, away for D, the last unmerged seconds lost."""
    run = split_of(RUN, 1).turned(overlap=1)
    expected = expect(run, replace(USUAL, mtbi=64 * 100 * HOUR))
    away = expected.heal_seconds["total"]
    unmerged = (12 + 1) * expected.step_seconds
    assert expected.goodput == pytest.approx(1 - (away + unmerged) / (100 * HOUR + away), abs=0.0005)
    assert expected.interruptions_per_day == pytest.approx(0.24)


def test_the_link_carries_the_largest_fragment_in_the_time_it_has() -> None:
    largest = max(fragment.size for fragment in RUN.layout.fragments)
    link = link_need(RUN, 1.0)
    assert link.gbps_peak == pytest.approx(largest * 16 / 2.0 / 1e9)
    assert link.gbps_mean == pytest.approx(RUN.parameters * 16 / 24 / 1e9)
    assert link.gbps_link >= max(link.gbps_peak, link.gbps_mean)
    int4 = link_need(replace(RUN, communication=CommunicationSpec(codec="int4")), 1.0)
    assert int4.gbps_mean == pytest.approx(RUN.parameters * 4.25 / 24 / 1e9)


def test_the_first_target_to_be_reached_ends_the_run() -> None:
    expected = expect(RUN, USUAL)
    assert expected.seconds_to_target == pytest.approx(20e9 / expected.tokens_per_second)
    sooner = expect(replace(RUN, target=TargetSpec(global_steps=10, tokens=20_000_000_000)), USUAL)
    assert sooner.seconds_to_target == pytest.approx(10 * sooner.step_seconds)


def test_quality_is_lost_as_the_ablations_say() -> None:
    assert points_lost(RUN) == 0.0
    more = replace(RUN, pools=(replace(V6E, units=16),))
    assert points_lost(more) == pytest.approx(0.9)
    assert points_lost(RUN.turned(codec="int4")) == pytest.approx(0.1)
    alone = replace(RUN, quorum=QuorumSpec(grace=GraceSpec(fraction=0.0)))
    assert points_lost(alone) == pytest.approx(3.0)
    assert points_lost(alone.turned(quorum=RUN.units)) == 0.0


def best_of(run: Run, assumed: Assumptions) -> Run:
    rows = choose(run, assumed)
    assert [row.run for row in rows].count(run) == 1 and rows[0].run == run
    (best,) = (row for row in rows if row.best)
    assert best.reason and not any(row.reason for row in rows if row is not best)
    return best.run


def test_every_choice_has_the_same_chips_and_the_same_batch_in_slices_that_exist() -> None:
    rows = choose(RUN, USUAL)
    assert {row.run.chips for row in rows} == {RUN.chips}
    assert len({sum(pool.units * pool.batch for pool in row.run.pools) for row in rows}) == 1
    assert {pool.chips for row in rows for pool in row.run.pools} <= set(V6E.sizes)
    assert {row.run.units for row in rows} == {2, 4, 8, 16, 32}
    few = replace(RUN, pools=tuple(replace(pool, most_units=8) for pool in RUN.pools))
    assert max(row.run.units for row in choose(few, USUAL)) == 16


def test_frequent_interruptions_ask_for_more_units() -> None:
    run = split_of(RUN, 2)
    assert best_of(run, OFTEN).units > run.units


@pytest.mark.parametrize(
    ("share", "codec", "interval"),
    [(0.7, "int8", 24), (0.4, "int4", 24), (0.2, "int4", 48), (0.1, "int4", 96)],
)
def test_a_thin_link_asks_for_fewer_bits_then_for_a_longer_interval_no_longer_than_it_must(
    share, codec, interval
) -> None:
    need = link_need(RUN, global_step(RUN, USUAL)).gbps_link
    thin = best_of(RUN, replace(USUAL, link_gbps=need * share))
    assert (thin.outer.codec, thin.outer.interval) == (codec, interval)


def test_a_link_on_which_nothing_fits_gets_what_needs_least_of_it() -> None:
    (best,) = (row for row in choose(RUN, replace(USUAL, link_gbps=0.01)) if row.best)
    assert best.run.outer.codec == "int4" and "still more than" in best.reason


def test_a_quorum_of_all_units_is_given_up_where_units_are_often_away() -> None:
    assert best_of(RUN.turned(quorum=RUN.units), OFTEN).quorum.min < RUN.units


def test_links_are_judged_with_the_runs_own_grace() -> None:
    """Without grace and with K = 1 the faster units leave the slower ones out, whatever their links."""
    wide, alone = replace(USUAL, link_gbps=1000.0), QuorumSpec(grace=GraceSpec(fraction=0.0))
    for run, least in ((RUN, 0.9), (replace(RUN, quorum=alone), 0.0)):
        slow = on_their_links(run, wide)["v5e"]["member_share"]
        assert least <= slow <= least + 0.5, slow


def test_a_part_of_many_units_on_links_has_a_quorum_that_it_can_reach() -> None:
    pools = tuple(replace(V6E, name=name, units=7) for name in ("a", "b", "c"))
    found = on_their_links(replace(RUN, pools=pools).turned(quorum=21), replace(USUAL, link_gbps=1000.0))
    assert {name: link["member_share"] for name, link in found.items()} == dict.fromkeys("abc", 1.0)


def test_a_long_interval_has_as_many_fragments_as_bands_of_the_embedding_allow() -> None:
    size = SIZES["1m"].model_copy(update={"layers": 6, "vocabulary": 32_000})
    rows = choose(replace(RUN, tensors=tuple(describe(ModelSpec(dimensions=size)))), USUAL)
    assert [row.run.outer.fragments for row in rows if row.run.outer.interval == 96] == [96]


def test_units_that_cannot_hold_the_model_are_not_chosen() -> None:
    pool = replace(V5E, units=8, chips=1, batch=64)
    run = replace(RUN, pools=(pool,), sequence_length=128)
    assert "cannot hold" not in choose(run, USUAL)[0].refusal
    larger = replace(run, tensors=tuple(replace(t, shape=(4 * t.shape[0], *t.shape[1:])) for t in BILLION))
    rows = choose(larger, USUAL)
    assert "cannot hold the model's state" in rows[0].refusal
    assert next(row.run.pools[0].chips for row in rows if row.best) > 1


def test_a_shard_needs_16_bytes_of_disk_and_54_of_memory_for_each_element_and_shards_divide_it() -> None:
    one, four = (shard_need(replace(RUN, shards=shards)) for shards in (1, 4))
    fragment = max(each.size for each in RUN.layout.fragments)
    assert one["volume"] == 16 * RUN.parameters + STATES + (128 << 20)
    rounds = HELD_ROUNDS * 8 * 2 * fragment
    merges = RUN.outer.overlap * 12 * fragment
    assert one["memory"] == pytest.approx(0.4e9 + 54 * RUN.parameters + rounds + merges)
    assert four["memory"] - PROCESS_BYTES < 0.35 * (one["memory"] - PROCESS_BYTES)
    assert four["volume"] < 0.35 * one["volume"]
    # Many units: four times their contributions.
    wide = replace(RUN, pools=(replace(V6E, units=200), replace(V5E, units=200))).turned(overlap=24)
    assert shard_need(wide)["memory"] == 4 * 24 * 400 * 2 * fragment > ELEMENT_BYTES * RUN.parameters

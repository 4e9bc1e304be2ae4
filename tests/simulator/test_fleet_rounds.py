"""Learners of given speeds and the real state machine, in simulated time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.protocol import schedule
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.fleet.learner import TOKENS
from atoll_runtime.simulate.fleet.rounds import Outcome, Stalled, World, outcome
from atoll_runtime.simulate.fleet.scenario import Costs, Life, Scenario
from atoll_runtime.simulate.fleet.speeds import Drift

MIX = (1.0, 1.0, 1.0, 1.0, 1.18, 1.18, 1.18, 1.18)
RULES = Rules(
    fragments=8,
    interval=8,
    overlap=2,
    quorum=1,
    grace_fraction=0.8,
    grace_steps=1.0,
    target_steps=160,
    target_tokens=None,
    cut_interval=10**9,
)
NO_GRACE = replace(RULES, grace_fraction=0.0)
INSTANT = Costs(push=0.0, merge=0.0, write=0.0, fetch=0.0)


def lives(*paces: float) -> tuple[Life, ...]:
    return tuple(Life(f"u{i}", pace) for i, pace in enumerate(paces))


def mixed(rules: Rules, *, waits: bool = False, costs: Costs = Costs(), seed: int = 0) -> Outcome:  # noqa: B008
    scenario = Scenario(rules, lives(*MIX), 0.1, waits=waits, costs=costs)
    return outcome(scenario, np.random.default_rng(seed))


def run(scenario: Scenario, seed: int = 0) -> tuple[World, list]:
    world = World(scenario, np.random.default_rng(seed))
    return world, list(world.decisions())


def test_one_learner_never_stops_and_loses_no_step_that_it_makes_while_a_contribution_is_under_way() -> None:
    for interval in (8, 64):
        rules = replace(RULES, interval=interval, target_steps=16 * interval)
        found = outcome(Scenario(rules, lives(1.0)), np.random.default_rng(0))
        assert found.goodput == 1
        assert found.mean_members == 1
        assert found.discarded == {}
        assert found.merged_share + found.in_flight == pytest.approx(1.0) and found.merged_share > 0.93


def test_equal_learners_without_spread_do_not_wait_for_each_other() -> None:
    rules = replace(RULES, quorum=4)
    for waits in (False, True):
        found = outcome(Scenario(rules, lives(1, 1, 1, 1), waits=waits), np.random.default_rng(0))
        assert found.goodput > 0.99
        assert found.mean_members == 4


def test_a_control_that_waits_loses_what_the_slowest_costs_and_our_learners_lose_nothing() -> None:
    rules = replace(RULES, quorum=2, target_steps=400)
    two = Scenario(rules, lives(1.0, 1.25))
    assert outcome(two, np.random.default_rng(0)).goodput == 1
    control = outcome(replace(two, waits=True), np.random.default_rng(0))
    # In 1.25 s the fast one works 1 s and the slow one all the time.
    assert control.goodput == pytest.approx((1 / 1.25 + 1) / 2, abs=0.01)


def test_an_exchange_longer_than_the_overlap_stops_a_control_and_not_our_learners() -> None:
    rules = replace(RULES, quorum=8, target_steps=80)
    long = Costs(push=1.0, merge=0.5, write=0.5, fetch=1.0)
    assert mixed(rules, waits=True, costs=long).goodput < mixed(rules, waits=True).goodput - 0.2
    assert mixed(rules, costs=long).goodput == 1


def test_a_control_is_never_more_than_the_overlap_ahead() -> None:
    world, _ = run(Scenario(replace(RULES, quorum=8), lives(*MIX), 0.3, waits=True))
    steps = [account.position // TOKENS for account in world.accounts.values()]
    assert max(steps) - min(steps) <= RULES.overlap
    assert all(each.idle > 0 for each in world.hours.values())


def test_without_grace_a_quorum_of_one_merges_few_and_with_grace_almost_as_many_as_waiting_for_all() -> None:
    alone, grace, everyone = (
        mixed(replace(rules, target_steps=200)) for rules in (NO_GRACE, RULES, replace(RULES, quorum=8))
    )
    assert alone.mean_members < 2 < 7.5 < grace.mean_members <= everyone.mean_members == 8
    assert alone.merged_share < 0.5 * grace.merged_share
    assert everyone.merged_share == pytest.approx(grace.merged_share, abs=0.01)
    assert "Missed" not in everyone.discarded
    # What came too late for one round stays in the learner for the next, until it is too old.
    assert alone.discarded["Missed"] > 0.3 > 0.02 > grace.discarded.get("Missed", 0.0)
    assert alone.goodput == grace.goodput == everyone.goodput == 1


def test_the_real_interval_is_that_of_the_schedule_for_the_slowest() -> None:
    found = outcome(Scenario(RULES, lives(1.0, 1.0, 1.0)), np.random.default_rng(0))
    assert found.real_interval == pytest.approx(RULES.interval, abs=0.5)
    assert found.seconds == pytest.approx(160, rel=0.05)
    mix = outcome(Scenario(RULES, lives(1.0, 2.0)), np.random.default_rng(0))
    assert mix.seconds == pytest.approx(2 * 160, rel=0.05)


def test_the_same_seed_gives_the_same_run_and_another_one_does_not() -> None:
    rules = replace(RULES, target_steps=40)
    assert mixed(rules, seed=3) == mixed(rules, seed=3)
    assert mixed(rules, seed=3) != mixed(rules, seed=4)


def test_a_learner_that_is_killed_is_missed_and_counts_again_when_it_is_back() -> None:
    stays, goes = Life("a", 1.0), Life("b", 1.0, last=40)
    back = Life("b", 1.0, begins=80.0, incarnation=2)
    _, decisions = run(Scenario(RULES, (stays, goes, back)))
    incarnations = [
        [member.incarnation for member in each.members if member.unit == "b"] for each in decisions
    ]
    steps = [each.round.step for each in decisions]
    assert all(found in ([1], []) for step, found in zip(steps, incarnations, strict=True) if step <= 40)
    assert [] in incarnations[40:80]
    assert incarnations[-1] == [2]
    assert all(len(each.members) >= 1 for each in decisions)


def test_a_replaced_incarnation_that_still_runs_is_fenced_off() -> None:
    twins = (Life("a", 1.0), Life("b", 1.0), Life("b", 1.0, begins=50.5, incarnation=2))
    world, decisions = run(Scenario(RULES, twins))
    late = [each for each in decisions if each.seconds > 60]
    assert {m.incarnation for each in late for m in each.members if m.unit == "b"} == {2}
    # Two of the same unit at once would have trained for longer than the run lasted.
    assert world.hours["b"].busy <= world.now


def test_a_run_that_lacks_its_quorum_says_where_it_stands() -> None:
    rules = replace(RULES, quorum=2)
    with pytest.raises(Stalled, match="the clock stands at 41 of 160 steps"):
        run(Scenario(rules, (Life("a", 1.0), Life("b", 1.0, last=40)), waits=True))


@settings(max_examples=25)
@given(
    paces=st.lists(st.floats(0.5, 2.0), min_size=1, max_size=4),
    jitter=st.floats(0, 0.3),
    quorum=st.integers(1, 4),
    overlap=st.integers(1, 3),
    grace=st.booleans(),
    waits=st.booleans(),
    last=st.none() | st.integers(5, 30),
    seed=st.integers(0, 99),
)
def test_whatever_the_learners_do_tokens_balance_and_merges_follow_the_schedule(
    paces: list[float],
    jitter: float,
    quorum: int,
    overlap: int,
    grace: bool,
    waits: bool,
    last: int | None,
    seed: int,
) -> None:
    quorum = min(quorum, len(paces))
    base = RULES if grace else NO_GRACE
    rules = replace(base, fragments=3, interval=5, overlap=overlap, quorum=quorum, target_steps=40)
    fleet = list(lives(*paces))
    if last is not None:
        fleet[0] = replace(fleet[0], last=last)
        fleet.append(Life("u0", paces[0], begins=150.0, incarnation=2))
    world, decisions = run(Scenario(rules, tuple(fleet), jitter, waits=waits), seed)
    steps = [each.round.step for each in decisions]
    assert len(steps) == len(set(steps))
    for each in decisions:
        assert schedule.due(each.round.step, 3, 5) == each.round.fragment
        assert len(each.members) >= quorum
    for name, account in world.accounts.items():
        merged = sum(m.tokens for each in decisions for m in each.members if m.unit == name)
        assert account.merged == merged
        assert account.trained == account.merged + sum(account.discarded.values()) + account.in_flight
        assert account.trained % (3 * TOKENS) == 0


def test_a_drawn_pace_lasts_and_its_spread_is_the_one_asked_for() -> None:
    drift = Drift(2.0, 0.1, 10, np.random.default_rng(0))
    first = drift._left
    steps = np.array([drift.next() for _ in range(20_000)])
    changes = np.flatnonzero(np.diff(steps)) + 1
    assert first == 0 and changes[0] <= 10
    assert set(np.diff(changes)) == {10}
    drawn = steps[changes]
    assert drawn.mean() == pytest.approx(2.0, rel=0.01)
    assert drawn.std() == pytest.approx(0.2, rel=0.05)

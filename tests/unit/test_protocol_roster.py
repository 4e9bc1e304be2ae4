"""A shard updates facts about its units as they change. They equal what a walk over all units finds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_shard import LONE, Story
from soak import schedule

from atoll_runtime.protocol.effects import Effect, Tell
from atoll_runtime.protocol.events import Event, Left, Tick
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.roster import Roster
from atoll_runtime.syncer.status import unit_report

RULES = replace(LONE, fragments=2, interval=2, overlap=2, quorum=2, grace_fraction=0.8, target_tokens=10**9)


def facts(roster: Roster) -> dict[str, Any]:
    names = ("live", "silent", "connected", "awaited", "slowest", "fastest", "ends")
    return {name: getattr(roster, name) for name in names}


def walked(machine: Syncer, now: float) -> Roster:
    """The roster as a walk over every unit builds it."""
    collecting = [held for held in machine.rounds.in_flight.values() if held.stage == "Collecting"]
    roster = Roster(machine.rules, machine.units.values(), collecting)
    roster.expire(now)
    return roster


def asked(machine: Syncer) -> bool:
    """Whether every live unit was sent a Pull for every round that collects."""
    return all(
        (unit.name, unit.incarnation) in held.pulled
        for held in machine.rounds.in_flight.values()
        for unit in machine.rounds.live
        if held.stage == "Collecting"
    )


@settings(max_examples=10)
@given(st.integers(0, 10**9))
def test_in_a_whole_run_with_faults_what_is_kept_is_what_a_walk_finds(seed: int) -> None:
    real = Syncer.handle

    def handle(machine: Syncer, event: Event, now: float) -> list[Effect]:
        effects = real(machine, event, now)
        assert facts(machine.rounds.roster) == facts(walked(machine, now))
        assert machine.rounds.tokens == sum(unit.account.merged for unit in machine.units.values())
        assert asked(machine)
        return effects

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Syncer, "handle", handle)
        outcome = schedule(seed)
    assert not outcome.failure, str(outcome)


class Unwalked(dict[Any, Any]):
    """A dictionary that allows only access by key."""

    def __iter__(self) -> Any:
        raise AssertionError("a walk over all units")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_a_report_walks_over_no_units() -> None:
    story = Story(RULES, "abcde")
    story.run(4)
    rounds = story.machine.rounds
    assert len(rounds.in_flight) == RULES.overlap, "no more are opened"
    rounds.units, rounds.roster.live = Unwalked(rounds.units), Unwalked(rounds.roster.live)
    story.step("a")
    assert rounds.units["a"].step == 5


@pytest.mark.parametrize(
    ("paces", "slowest"),
    [
        ([1.0], 1.0),
        ([1.0, 3.9], 3.9),
        ([1.0, 4.1], 1.0),
        ([1.0, 1.1, 1.2, 3600.0], 1.2),
        ([0.001, 1.0, 1.2], 1.2),
        ([1.0, 1.0, 5.0, 5.0, 5.0], 5.0),
    ],
)
def test_a_unit_that_is_slower_than_four_times_the_median_does_not_set_the_clock(
    paces: list[float], slowest: float
) -> None:
    story = Story(replace(RULES, slow_factor=4.0), "abcde"[: len(paces)])
    for name, pace in zip(story.steps, paces, strict=True):
        for _ in range(3):
            story.step(name, pace)
    assert len(story.machine.rounds.live) == len(paces)
    assert story.machine.rounds.slowest == slowest
    for name, pace in zip(story.steps, paces, strict=True):
        told = unit_report(story.machine, story.machine.units[name], None).slow
        assert bool(told) == (pace > slowest), "nobody else is told so"
        assert not told or told.startswith(f"steps of {pace:.5g} s, more than 4 × the median of ")


def test_the_first_unit_with_two_samples_is_not_the_median_alone() -> None:
    story = Story(replace(RULES, slow_factor=4.0), "abc")
    for name, pace, reports in (("b", 5.0, 2), ("c", 5.0, 2), ("a", 1e-5, 3)):
        for _ in range(reports):
            story.step(name, pace)
    assert story.machine.rounds.slowest == 5.0


@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("factor", [4.0, math.inf], ids=["guard", "no-guard"])
def test_a_unit_that_is_not_live_or_does_not_report_to_the_shard_is_not_called_slow(
    factor: float, shard: int
) -> None:
    machine = Story(replace(RULES, slow_factor=factor, shard=shard, shards=2), "a").machine
    assert len(machine.rounds.live) == shard
    assert unit_report(machine, machine.units["a"], None).slow == ""


def test_at_the_time_that_the_machine_asks_for_a_silent_unit_is_waited_for_no_more() -> None:
    story = Story(RULES, "a")
    story.run(2)
    machine = story.machine
    assert set(machine.rounds.roster.live) == {"a"}
    assert machine.handle(Tick(), story.wake) == [Tell(machine.orders)] and not machine.rounds.live
    assert machine.orders.silent == (("a", 1),)


@pytest.mark.parametrize("away", [True, False])
def test_what_a_unit_that_is_away_or_silent_has_sent_is_not_judged_by_the_steps_of_a_slow_one(
    away: bool,
) -> None:
    story = Story(RULES, "ab")
    for name, seconds in (("a", 1.0), ("b", 10.0)) * 3:
        story.step(name, seconds)
    if away:
        story.tell(Left("a", 1, 0))
    story.now += RULES.silence + 1
    story.step("b", 10.0)
    rounds = story.machine.rounds
    assert (set(rounds.roster.live), rounds.slowest, rounds.fastest) == ({"b"}, 10.0, 1.0)

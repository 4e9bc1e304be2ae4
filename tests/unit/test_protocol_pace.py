"""The clock's pace: that of the slowest unit as it steps now, not that of one step in the past."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from lone_shard import LONE, Story

from atoll_runtime.protocol.events import Left
from atoll_runtime.protocol.pace import StepTime

RULES = replace(LONE, interval=10_000)
"""Rules with which no round is due, so that only the pace holds the clock back."""


def clock() -> Story:
    """Units a, b and c have made a step a second from 0 s to 20 s. Later steps are those that a test makes."""
    story = Story(RULES, "abc")
    story.run(20)
    return story


def a_long_step(clock: Story) -> None:
    clock.run(600, "ab")
    clock.step("c", 600.0)


def a_long_last_step(clock: Story) -> None:
    clock.now += 1.0  # the clock may advance again, and does so at this report
    clock.step("c", 3600.0)
    clock.tell(Left("c", 1, 0))


def a_newcomer(clock: Story) -> None:
    clock.join("d")
    clock.step("d", 1.0)
    clock.step("d", 60.0)


@pytest.mark.parametrize("happening", [a_long_step, a_long_last_step, a_newcomer])
def test_one_long_step_of_one_unit_does_not_hold_the_clock(happening: Callable[[Story], None]) -> None:
    story = clock()
    assert story.run(20) == 20
    happening(story)
    assert story.run(20, "abc" if happening is a_long_step else "ab") >= 15


def test_the_clock_follows_a_unit_that_has_become_slow_for_good_and_goes_on_when_it_is_gone() -> None:
    story = clock()
    for _ in range(15):
        story.run(16, "ab")
        story.step("c", 16.0)
    assert story.machine.rounds.roster.slowest == pytest.approx(16.0, rel=0.1)
    assert story.run(16, "ab") <= 2
    story.tell(Left("c", 1, 0))
    assert story.run(20, "ab") >= 20


@pytest.mark.parametrize(
    ("samples", "value", "steady"),
    [
        ([60.0], 60.0, False),
        ([60.0, 1.0], 1.0, True),
        ([1.0, 60.0], 1.0, True),
        ([2.0, 2.0, 600.0], 3.5, True),
        ([2.0, 2.0, 1.0], 1.75, True),
    ],
)
def test_a_units_pace_is_steady_after_two_samples_and_no_later_one_counts_beyond_the_bound(
    samples: list[float], value: float, steady: bool
) -> None:
    pace = StepTime()
    for sample in samples:
        pace.add(sample)
    assert (pace.value, pace.steady) == (value, steady)

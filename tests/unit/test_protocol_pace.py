"""What the clock is paced by: the slowest unit as it steps now, not one step that it once made."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from atoll_runtime.protocol.effects import Wake
from atoll_runtime.protocol.events import Event, Joined, Left, Reported, Tick
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.steptime import StepTime

RULES = Rules(
    fragments=1,
    interval=10_000,  # no round is due: nothing but the pace holds the clock
    overlap=1,
    quorum=1,
    grace_fraction=0.0,
    grace_steps=1.0,
    target_steps=10**6,
    target_tokens=None,
)


class Clock:
    """A machine whose units a, b and c make a step a second from 0 s on; each makes another as it is told to."""

    def __init__(self) -> None:
        self.machine, self.now, self.steps = begin(RULES, (10,), [0]), 0.0, dict.fromkeys("abc", 0)
        self.wake = math.inf
        for unit in self.steps:
            self.feed(Joined(unit, 1, 0, 1, 0, ""))
        self.run(20)

    def feed(self, event: Event) -> None:
        for effect in self.machine.handle(event, self.now):
            if isinstance(effect, Wake):
                self.wake = effect.at

    def report(self, unit: str, seconds: float) -> None:
        self.steps[unit] += 1
        n = self.steps[unit]
        self.feed(Reported(unit, 1, 0, n, n, n, 1.0, seconds, n))

    def run(self, seconds: int, units: str = "abc") -> int:
        """Steps of the clock in so many seconds, in which these units step."""
        begun = self.machine.step
        for _ in range(seconds):
            self.now += 1.0
            if self.now >= self.wake:
                self.feed(Tick())
            for unit in units:
                self.report(unit, 1.0)
        return self.machine.step - begun


def a_long_step(clock: Clock) -> None:
    clock.run(600, "ab")
    clock.report("c", 600.0)


def a_long_last_step(clock: Clock) -> None:
    clock.now += 1.0  # the clock may advance, and does so at this report
    clock.report("c", 3600.0)
    clock.feed(Left("c", 1, 0))


def a_newcomer(clock: Clock) -> None:
    clock.feed(Joined("d", 1, 0, 1, 0, ""))
    clock.steps["d"] = 0
    clock.report("d", 1.0)
    clock.report("d", 60.0)


@pytest.mark.parametrize("happening", [a_long_step, a_long_last_step, a_newcomer])
def test_one_long_step_of_one_unit_does_not_hold_the_clock(happening: Callable[[Clock], None]) -> None:
    clock = Clock()
    assert clock.run(20) == 20
    happening(clock)
    assert clock.run(20, "abc" if happening is a_long_step else "ab") >= 15


def test_the_clock_follows_a_unit_that_has_become_slow_for_good_and_goes_on_when_it_is_gone() -> None:
    clock = Clock()
    for _ in range(15):
        clock.run(16, "ab")
        clock.report("c", 16.0)
    assert clock.machine.rounds.roster.slowest == pytest.approx(16.0, rel=0.1)
    assert clock.run(16, "ab") <= 2
    clock.feed(Left("c", 1, 0))
    assert clock.run(20, "ab") >= 20


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

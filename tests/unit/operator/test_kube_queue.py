"""The work queue: which key is handled when, and how long one waits that fails. Time leaps."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
from leaping import leap

from atoll_operator.kube.errors import Retry, Unreachable
from atoll_operator.kube.logs import LOG
from atoll_operator.kube.queue import LANE_RATE, WorkQueue, gather_bounded

QUOTA, NO_ANSWER = Retry(5.0, "exceeded quota: chips"), Unreachable("nobody answers")
Step = Callable[[WorkQueue[str]], None]
Outcome = Callable[[int], Exception | None]
"""By the number of a pass, from 1: what it raises."""


class World:
    """A queue that notes the times of the passes over each key; a pass takes `seconds`."""

    def __init__(self, outcome: Outcome = lambda count: None, seconds: float = 0.0) -> None:
        self.times: dict[str, list[float]] = {}
        self.queue: WorkQueue[str] = WorkQueue(self._handle)
        self._outcome, self._seconds = outcome, seconds

    async def _handle(self, key: str) -> None:
        times = self.times.setdefault(key, [])
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._seconds)
        if error := self._outcome(len(times)):
            raise error

    def run(self, seconds: float, *steps: tuple[float, Step]) -> list[float]:
        """The times of the passes over the key `a`; each step is taken at its time."""

        async def work() -> None:
            for at, step in steps:
                asyncio.get_running_loop().call_at(at, step, self.queue)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.queue.run(), seconds)
            assert self.queue.oldest_seconds() == 0

        leap(work())
        return self.times.get("a", [])


def add(queue: WorkQueue[str]) -> None:
    queue.add("a")


def spaced(queue: WorkQueue[str]) -> None:
    queue.add("a", 9)


def after(seconds: float) -> Step:
    return lambda queue: queue.add_after("a", seconds)


STEPS = [
    pytest.param([(0, add), (0, add), (0, add)], [0], id="many-adds-one-pass"),
    pytest.param([(0, add), (0.5, add), (0.6, add)], [0, 1], id="again-after-the-pass-that-runs"),
    pytest.param([(0, spaced), (2, add)], [0, 2], id="a-first-pass-is-not-spaced"),
    pytest.param([(0, add), (5, spaced)], [0, 10], id="spaced-from-the-last-pass"),
    pytest.param([(0, add), (0.5, spaced)], [0, 9.5], id="spaced-while-handled"),
    pytest.param([(0, add), (3, spaced), (4, add)], [0, 4], id="an-add-is-not-spaced-and-its-pass-is-enough"),
    pytest.param([(0, after(8)), (1, after(3))], [4], id="earliest-time-wins"),
    pytest.param([(0, add), (3, after(8)), (4, add)], [0, 4], id="a-pass-cancels-what-was-due-later"),
    pytest.param([(0, add), (0.5, after(8)), (1, add)], [0, 1], id="again-cancels-it-too"),
    pytest.param([(0, after(8)), (1, lambda queue: queue.forget("a"))], [], id="forgotten-with-its-timer"),
]


@pytest.mark.parametrize(("steps", "expected"), STEPS)
def test_a_key_is_handled_as_often_and_as_soon_as_asked(
    steps: list[tuple[float, Step]], expected: list[float]
) -> None:
    assert World(seconds=1.0).run(100, *steps) == pytest.approx(expected)


def asks(at: float, *what: Any) -> tuple[float, Step]:
    return at, lambda queue: queue.add(*what)


def test_passes_of_a_lane_share_a_rate_over_all_keys_and_nothing_else_waits_for_them() -> None:
    world = World()
    all_change = itertools.product(range(20), range(500))
    slow = (asks(second, f"{number}", 1.0, "slow") for second, number in all_change)
    world.run(120, *slow, asks(5.5, "urgent", 0.5), asks(5.5, "other", 0.5, "fast"))
    passes = world.times
    assert passes.pop("urgent") == passes.pop("other") == pytest.approx([5.5])
    wait = 500 / LANE_RATE
    assert len(passes) == 500 and all(19 <= times[-1] <= 19 + wait for times in passes.values())
    times = sorted(time for times in passes.values() for time in times)
    second = int(LANE_RATE) + 1
    assert all(later - earlier >= 0.99 for earlier, later in zip(times, times[second:], strict=False))


def test_keys_that_had_their_pass_together_do_not_have_the_next_one_in_a_lane_together() -> None:
    """As the figures of all units, after a pass over each because their syncer came."""
    world, keys = World(), [f"{number}" for number in range(100)]
    world.run(60, *(asks(0, key) for key in keys), *(asks(1, key, 30.0, "slow") for key in keys))
    first, spaced = (sorted(times) for times in zip(*world.times.values(), strict=True))
    assert max(first) == 0 and len(spaced) == 100
    assert spaced[0] >= 30 and spaced[-1] - spaced[0] >= 99 / LANE_RATE - 0.01


def test_a_key_that_has_its_pass_earlier_gives_its_turn_in_the_lane_to_another() -> None:
    """Otherwise a syncer that comes and goes, each time waking all units, would delay their conditions by minutes."""
    world, steps = World(), list[tuple[float, Step]]()
    for second, number in itertools.product(range(10), range(400)):
        steps += asks(second, f"{number}", 1.0, "slow"), asks(second + 0.5, f"{number}")
    world.run(1000, *steps, asks(10, "last", 0.0, "slow"))
    assert world.times["last"][-1] <= 10 + 2 / LANE_RATE


GROWING = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60)
FAILURES = [(QUOTA, (5, 10, 20, 40, 60, 60, 60)), (NO_ANSWER, GROWING), (KeyError("a bug"), GROWING)]


@pytest.mark.parametrize(("error", "longest"), FAILURES)
def test_the_waits_of_a_key_that_fails_grow_to_a_minute(error: Exception, longest: tuple[float, ...]) -> None:
    times = World(lambda count: error).run(3600, (0, add))
    waits = [after - before for before, after in itertools.pairwise(times)]
    for wait, most in itertools.zip_longest(waits, longest, fillvalue=60):
        assert 0.8 * most <= wait <= most


@pytest.mark.parametrize(
    ("step", "wait"), [(add, 5), (lambda q: q.add("a", 1), 5), (WorkQueue.retry_failed, 60)]
)
def test_a_key_that_waits_long_is_tried_at_once_after_news(
    step: Step, wait: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_operator.kube.queue.random.uniform", lambda least, most: most)
    times = World(lambda count: QUOTA).run(600, (0, add), (400.0, step))
    assert times[:12] == [0, 5, 15, 35, 75, 135, 195, 255, 315, 375, 400, 400 + wait]


def test_a_pass_that_succeeds_forgets_the_failures_before_it() -> None:
    times = World(lambda count: None if count == 8 else QUOTA).run(1200, (0, add), (600.0, add))
    assert times[8] == 600.0 and times[9] - 600.0 <= 5


def test_a_failure_is_told_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        World(lambda count: QUOTA if count < 5 else NO_ANSWER).run(600, (0, add))
    told = [(record.levelno, record.fields["error"]) for record in caplog.records if record.name == LOG.name]
    assert told == [(logging.INFO, str(QUOTA)), (logging.WARNING, str(NO_ANSWER))]


@pytest.mark.parametrize(
    ("errors", "at_once", "done"),
    [
        pytest.param({"b": ValueError("b"), "c": ValueError("c")}, 4, ["a", "c", "d", "b"], id="all-end"),
        pytest.param({"b": ValueError("b"), "c": NO_ANSWER}, 2, ["a", "c", "b"], id="nothing-more-is-begun"),
    ],
)
def test_of_several_failures_the_first_in_order_is_raised(errors: Any, at_once: int, done: list[str]) -> None:
    """Where the API server does not answer, hundreds of requests one after the other take longer than a pass may."""
    ended: list[str] = []

    async def work(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        ended.append(name)
        if name in errors:
            raise errors[name]

    works = (work(name, seconds) for name, seconds in (("a", 1), ("b", 9), ("c", 2), ("d", 3)))
    with pytest.raises(ValueError, match="b"):
        leap(gather_bounded(works, at_once))
    assert ended == done

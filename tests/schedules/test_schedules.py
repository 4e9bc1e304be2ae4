"""Thousands of random schedules of the whole protocol, the same on every machine; SEED and SCHEDULES choose others."""

from __future__ import annotations

import os

import pytest

from atoll_runtime.simulate.schedules.soak import batch, schedule

SEED = int(os.environ.get("SEED") or 20261121)
COUNT = int(os.environ.get("SCHEDULES") or 3_000)
PART = 100
"""Schedules of one test: the workers share the tests between them."""

FAILED_ONCE = {
    "nobody left who knows of the end": 572380494,  # a shard lost its journal while the others ended, and its learner
    "cuts run ahead of a clock that stands still": 20266647,  # orders to a shard whose final cut was out of date
    "learners alone know of a cut": 700011211,  # a shard lost its journal twice, and its learners were new each time
    "learners alone know of a cut, and were cut off": 700014225,
}


@pytest.mark.parametrize("seed", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_a_schedule_that_failed_once_keeps_every_promise(seed: int) -> None:
    outcome = schedule(seed)
    assert not outcome.failure, str(outcome)


@pytest.mark.timeout(900)  # 6 s alone
@pytest.mark.parametrize("first", range(SEED, SEED + COUNT, PART))
def test_every_schedule_keeps_every_promise_and_reaches_its_end(first: int) -> None:
    failures = [outcome for outcome in batch(first, min(PART, SEED + COUNT - first)) if outcome.failure]
    assert not failures, "\n".join(map(str, failures[:10]))

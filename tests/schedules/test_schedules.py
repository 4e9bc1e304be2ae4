"""Ten thousand random schedules of the whole protocol, the same on every machine; SEED and SCHEDULES choose others."""

from __future__ import annotations

import os

import pytest

from atoll_runtime.simulate.schedules.soak import soak

SEED = int(os.environ.get("SEED") or 20261121)
COUNT = int(os.environ.get("SCHEDULES") or 10_000)


FAILED_ONCE = {
    "nobody left who knows of the end": 572380494,  # a shard lost its journal while the others ended, and its learner
    "cuts run ahead of a clock that stands still": 20266647,  # orders to a shard whose final cut was out of date
    "learners alone know of a cut": 700011211,  # a shard lost its journal twice, and its learners were new each time
    "learners alone know of a cut, and were cut off": 700014225,
}


@pytest.mark.parametrize("seed", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_a_schedule_that_failed_once_keeps_every_promise(seed: int) -> None:
    (outcome,) = (outcome for batch in soak(seed, 1, 1) for outcome in batch)
    assert not outcome.failure, str(outcome)


@pytest.mark.timeout(7200)  # five minutes on two quiet cores; others may use them too
def test_every_schedule_keeps_every_promise_and_reaches_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{COUNT} schedules from seed {SEED} on", flush=True)
    failures = [
        outcome for batch in soak(SEED, COUNT, os.cpu_count() or 1) for outcome in batch if outcome.failure
    ]
    assert not failures, "\n".join(map(str, failures[:10]))

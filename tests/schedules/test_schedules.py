"""Ten thousand random schedules of the whole protocol; SEED and SCHEDULES in the environment choose others."""

from __future__ import annotations

import os
import random

import pytest

from atoll_runtime.simulate.schedules.soak import soak

SEED = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**9))
COUNT = int(os.environ.get("SCHEDULES") or 10_000)


FAILED_ONCE = (572380494,)
"""A shard lost its journal while the others ended, and its learner too: nobody was left who knew of their end."""


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_a_schedule_that_failed_once_keeps_every_promise(seed: int) -> None:
    (outcome,) = (outcome for batch in soak(seed, 1, 1) for outcome in batch)
    assert not outcome.failure, str(outcome)


@pytest.mark.timeout(1800)
def test_every_schedule_keeps_every_promise_and_reaches_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{COUNT} schedules from seed {SEED} on", flush=True)
    failures = [
        outcome for batch in soak(SEED, COUNT, os.cpu_count() or 1) for outcome in batch if outcome.failure
    ]
    assert not failures, "\n".join(map(str, failures[:10]))

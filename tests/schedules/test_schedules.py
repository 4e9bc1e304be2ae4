"""Thousands of random schedules of the whole protocol, the same on every machine; SEED and SCHEDULES choose others."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import soak
from soak import batch

SEED = int(os.environ.get("SEED") or 20261121)
COUNT = int(os.environ.get("SCHEDULES") or 3_000)
PART = 50
"""Schedules of one test: the workers share the tests between them."""


@pytest.mark.timeout(900)  # 5 s alone
@pytest.mark.parametrize("first", range(SEED, SEED + COUNT, PART))
def test_every_schedule_keeps_every_promise_and_reaches_its_end(first: int) -> None:
    failures = [outcome for outcome in batch(first, min(PART, SEED + COUNT - first)) if outcome.failure]
    assert not failures, "\n".join(map(str, failures[:10]))


def test_a_seed_is_the_same_schedules_in_every_process() -> None:
    """Though hashes of strings differ, and with them the order of sets."""
    told = set()
    for hashes in ("1", "2"):
        command = [sys.executable, str(soak.__file__), "--seed", str(SEED), "--count", "8"]
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=True
        )
        told.add(done.stdout.rpartition(",")[0])  # without the seconds
    assert len(told) == 1, told

"""The operator in random stories in simulated time, the same on every machine; SEED and STORIES choose others."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from operator_stories import outcome

SEED = int(os.environ.get("SEED") or 20261123)
COUNT = int(os.environ.get("STORIES") or 120)
FAILED_ONCE = {
    "a pod without a node is gone with its deletion": 42,
    "the same, while its unit is removed": 89,
}


@pytest.mark.parametrize("seed", FAILED_ONCE.values(), ids=FAILED_ONCE)
def test_a_story_that_failed_once_leaves_nothing_to_do(seed: int) -> None:
    assert not outcome(seed)


@pytest.mark.timeout(3600)  # a minute on two quiet cores; others may use them too
def test_an_operator_at_rest_has_nothing_left_to_do() -> None:
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        wrong = [told for told in pool.map(outcome, range(SEED, SEED + COUNT)) if told]
    assert not wrong, "\n".join(wrong[:10])

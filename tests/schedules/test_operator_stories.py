"""The operator in random stories in simulated time, the same on every machine; SEED and STORIES choose others."""

from __future__ import annotations

import os
from concurrent.futures import Executor

import pytest
from operator_stories import outcome

SEED = int(os.environ.get("SEED") or 20261123)
COUNT = int(os.environ.get("STORIES") or 120)
FAILED_ONCE = (6,)  # a pod that had no node yet was gone with its deletion, and its unit said that it drained
SEEDS = (*FAILED_ONCE, *range(SEED, SEED + COUNT))
PART = 10
"""Stories of one test: the workers share the tests between them."""


@pytest.mark.timeout(900)  # 10 s alone
@pytest.mark.parametrize("first", range(0, len(SEEDS), PART))
def test_an_operator_at_rest_has_nothing_left_to_do(fixed_hashes: Executor, first: int) -> None:
    wrong = [told for told in fixed_hashes.map(outcome, SEEDS[first : first + PART]) if told]
    assert not wrong, "\n".join(wrong)

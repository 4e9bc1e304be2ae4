"""The operator in random stories in simulated time, the same on every machine; SEED and STORIES choose others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from operator_stories import outcome

SEED = int(os.environ.get("SEED") or 20261123)
COUNT = int(os.environ.get("STORIES") or 120)
FAILED_ONCE = (6,)  # a pod that had no node yet was gone with its deletion, and its unit said that it drained
SEEDS = (*FAILED_ONCE, *range(SEED, SEED + COUNT))
PART = 10
"""Stories of one test: the workers share the tests between them."""


@pytest.fixture
def fixed_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    """A process in which sets have the same order each time."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with ProcessPoolExecutor(1, get_context("spawn")) as one:
        yield one


@pytest.mark.timeout(900)  # 10 s alone
@pytest.mark.parametrize("first", range(0, len(SEEDS), PART))
def test_an_operator_at_rest_has_nothing_left_to_do(fixed_hashes: Executor, first: int) -> None:
    wrong = [told for told in fixed_hashes.map(outcome, SEEDS[first : first + PART]) if told]
    assert not wrong, "\n".join(wrong)

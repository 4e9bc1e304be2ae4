"""A process for worlds in simulated time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from soak import prepare


@pytest.fixture(scope="module", autouse=True)
def prepared() -> Iterator[None]:
    """Without it a collection of garbage looks at what earlier tests have left, and pytest keeps each record of
    thousands of schedules: a third of their time."""
    prepare()
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def fixed_hashes() -> Iterator[Executor]:
    """A process in which sets have the same order each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONHASHSEED", "0")
        with ProcessPoolExecutor(1, get_context("spawn")) as one:
            one.submit(int).result()  # it is there, and has read its environment
            yield one

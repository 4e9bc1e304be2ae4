"""A process for worlds in simulated time."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest


@pytest.fixture(scope="session", autouse=True)
def collected() -> None:
    """A collection of garbage passes over what earlier tests have left."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def unlogged() -> Iterator[None]:
    """pytest would keep every record of thousands of schedules: a third of their time."""
    logging.disable(logging.CRITICAL)
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

"""A process for worlds in simulated time."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import pytest


@pytest.fixture
def fixed_hashes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Executor]:
    """A process in which sets have the same order each time."""
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    with ProcessPoolExecutor(1, get_context("spawn")) as one:
        yield one

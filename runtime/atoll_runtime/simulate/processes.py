"""Simulations on several cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def in_processes(simulate: Callable[[T], R], tasks: Sequence[T], workers: int | None = None) -> list[R]:
    """The result of each task; what it raises comes through.

    Args:
        workers: None: one a core. Their number changes nothing but the time it takes.
    """
    workers = min(workers or os.cpu_count() or 1, len(tasks))
    if workers <= 1:
        return [simulate(task) for task in tasks]
    # Spawned, not forked: the caller may have threads (JAX, BLAS), whose locks a fork would copy locked.
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(simulate, tasks, chunksize=max(1, len(tasks) // (8 * workers))))

"""Runs trials in several processes, each on one core."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any

from atoll_bench.parity.trials import Trial
from atoll_bench.workers import workers

KILLED = "a trial's process was killed, out of memory perhaps; --resume goes on with what is finished"


def run_all(
    trials: Sequence[Trial], data: str, cache: str, jobs: int
) -> Iterator[tuple[Trial, dict[str, Any]]]:
    """Yields results as they come. Trials start in the given order, but those that run together may end in another.

    Args:
        cache: a folder for compiled programs, which the processes share.

    Raises:
        CommandError: a trial's process was killed.
    """
    cores = multiprocessing.get_context("spawn").Queue()
    for core in sorted(os.sched_getaffinity(0))[:jobs]:
        cores.put(core)
    with workers(jobs, KILLED, _begin, (cores, cache)) as pool:
        running = {pool.submit(run_one, trial, data): trial for trial in trials}
        for future in as_completed(running):
            yield running[future], future.result()


def run_one(trial: Trial, data: str) -> dict[str, Any]:
    """Runs a trial and returns its result as JSON types. If it diverged, `loss` is None and `error` says why."""
    from dataclasses import asdict

    from atoll_runtime.learner.loop import LossNotFinite
    from atoll_runtime.simulate.training.world import data_parallel, decoupled

    began, used = time.monotonic(), time.process_time()
    setting = trial.setting(data)
    train = data_parallel if trial.method == "data-parallel" else decoupled
    try:
        found = asdict(train(setting, trial.seed))
    except (LossNotFinite, ArithmeticError) as error:
        found = {"loss": None, "tokens": trial.tokens, "error": str(error)}
    else:
        found["global_steps"] = found.pop("steps")
    return found | {
        "wall_seconds": round(time.monotonic() - began, 1),
        "core_seconds": round(time.process_time() - used, 1),
    }


def _begin(cores: Any, cache: str) -> None:
    """Pins this process to a core before JAX counts cores."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if not cores.empty():
        os.sched_setaffinity(0, {cores.get()})
    import jax

    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


def _end_with_parent() -> None:
    """Ends this process when the proof's process has ended, even if that was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

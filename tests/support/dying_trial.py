"""Trials of the proof as a test wants them. In its own module because a spawned process imports it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from atoll_bench.parity.trials import Trial


def begin(*_: object) -> None:
    """Replaces the start of a worker, without taking a core or loading JAX."""


def finished_but_of_seed_1(trial: Trial, _: str) -> dict[str, Any]:
    """The trial of seed 1 ends as if the kernel had killed it for lack of memory."""
    if trial.seed == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"loss": 2.0}


def noted_in(trial: Trial, folder: str) -> dict[str, Any]:
    """A trial that leaves a file of its seed when it begins. All but that of seed 0 last."""
    (Path(folder) / str(trial.seed)).touch()
    if trial.seed:
        signal.pause()
    return {"loss": 2.0}

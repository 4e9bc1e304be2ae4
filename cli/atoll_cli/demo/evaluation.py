"""Evaluates the global model on held-out text in a separate process, so that this one does not load JAX."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from atoll_cli.errors import CommandError
from atoll_local.process import run
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_runtime.contract import DataSpec

TIMEOUT = 300.0
"""Seconds for one evaluation, JAX's start included."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Loss of one global checkpoint on held-out text."""

    step: int
    loss: float
    """Nats per token."""
    tokens: int


def evaluate_both(spec: TrainingRunSpec, first: int) -> tuple[HeldOut, HeldOut]:
    """Evaluates the checkpoint of global step `first` and the newest one at the same time. Raises `CommandError`."""
    with ThreadPoolExecutor() as pool:
        one, other = (pool.submit(evaluate, spec.checkpoint.uri, step, spec.data) for step in (first, None))
        return one.result(), other.result()


def evaluate(checkpoints: str, step: int | None, data: DataSpec) -> HeldOut:
    """Evaluates the checkpoint of global step `step`, or the newest complete one. Raises `CommandError`: the evaluation
    failed, or took longer than `TIMEOUT`."""
    command = [sys.executable, "-m", "atoll_runtime.evaluate"]
    command += ["--checkpoint", checkpoints, "--data", data.uri]
    command += ["--sequence-length", str(data.sequence_length), "--packing", data.packing]
    command += [] if step is None else ["--step", str(step)]
    name = f"the evaluation of {checkpoints}"
    said = run(command, TIMEOUT, raises=CommandError, name=name, environment={"JAX_PLATFORMS": "cpu"})
    return HeldOut(**json.loads(said.splitlines()[-1]))

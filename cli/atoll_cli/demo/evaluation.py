"""Evaluates the global model on held-out text in a separate process, so that this one does not load JAX."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from atoll_cli.errors import CommandError
from atoll_local.process import run

TIMEOUT = 300.0
"""Seconds for one evaluation, JAX's start included."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Loss of one global checkpoint on held-out text."""

    step: int
    loss: float
    """Nats per token."""
    tokens: int


def evaluate(
    checkpoints: str, step: int | None, data: str, length: int, environment: Mapping[str, str]
) -> HeldOut:
    """Evaluates the checkpoint of global step `step`, or the newest complete one.

    Raises:
        CommandError: the evaluation failed, or took longer than `TIMEOUT`.
    """
    command = [sys.executable, "-m", "atoll_runtime.evaluate"]
    command += ["--checkpoint", checkpoints, "--data", data, "--sequence-length", str(length)]
    command += [] if step is None else ["--step", str(step)]
    name, environment = f"the evaluation of {checkpoints}", {"JAX_PLATFORMS": "cpu", **environment}
    said = run(command, TIMEOUT, raises=CommandError, name=name, environment=environment)
    result = json.loads(said.splitlines()[-1])
    return HeldOut(step=result["step"], loss=result["loss"], tokens=result["tokens"])

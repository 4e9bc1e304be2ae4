"""What `atoll simulate links` says of the large model with one unit behind a narrow link, beside one on a wide one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from atoll_bench.regions.wan import PARAMETERS, STEP_SECONDS
from atoll_cli.errors import CommandError
from atoll_local.process import run
from atoll_runtime.contract import OuterSpec

CODECS = ("bf16", "int8", "int4")
"""That are fixed, to compare the policy with."""
GRID_STEPS = 1024
"""Of a simulation that compares: in many, little of the work is under way at the end."""
SECONDS = 300.0


@dataclass(frozen=True)
class Choice:
    """A point of the grid, and the share of the unit's time whose tokens are merged."""

    codec: str
    interval: int
    share: float


def links(gbps: float, wide: float, interval: int, steps: int, codec: str = "auto") -> dict[str, Any]:
    """The unit behind the narrow link. Raises `CommandError`."""
    options = {
        "links": f"{gbps},{wide}",
        "params": str(PARAMETERS),
        "step-time": str(STEP_SECONDS),
        "fragments": str(min(interval, OuterSpec().fragments)),
        "interval": str(interval),
        "steps": str(steps),
        "codec": codec,
    }
    command = [sys.executable, "-m", "atoll_cli", "simulate", "links", "--json"]
    command += [f"--{name}={value}" for name, value in options.items()]
    told = run(command, SECONDS, raises=CommandError, name="simulate links")
    found: dict[str, Any] = json.loads(told)["units"][0]
    return found


def compared(gbps: float, wide: float, intervals: Sequence[int]) -> tuple[dict[int, Choice], Choice]:
    """The policy's choice by interval, and the best of all fixed codecs and intervals. Raises `CommandError`."""
    points = [(codec, interval) for codec in ("auto", *CODECS) for interval in intervals]

    def simulate(point: tuple[str, int]) -> Choice:
        codec, interval = point
        found = links(gbps, wide, interval, max(GRID_STEPS, 4 * interval), codec)
        return Choice(found["codec"], interval, found["hidden_share"] * found["merged_share"])

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        found = list(threads.map(simulate, points))
    free, fixed = found[: len(intervals)], found[len(intervals) :]
    return {each.interval: each for each in free}, max(fixed, key=lambda each: each.share)

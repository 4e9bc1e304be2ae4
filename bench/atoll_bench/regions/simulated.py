"""Simulates the large model with one unit behind a narrow link and one behind a wide link."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atoll_bench.regions.wan import PARAMETERS, STEP_SECONDS
from atoll_runtime.contract import CommunicationSpec, OuterSpec, QuorumSpec
from atoll_runtime.simulate.fleet.links import Links, UnitOnLink, on_links

CODECS = ("bf16", "int8", "int4")
"""Fixed codecs with which the policy is compared."""
GRID_STEPS = 1024
"""The least number of steps of a simulation in the grid. With many steps, little work is under way at the end."""


@dataclass(frozen=True)
class Choice:
    """A point of the grid, and the share of the unit's time whose tokens are merged."""

    codec: str
    interval: int
    share: float


def links(gbps: float, wide: float, interval: int, steps: int, codec: Any = None) -> UnitOnLink:
    """Simulates and returns the unit behind the narrow link. `codec`: the fixed codec; None: the policy chooses."""
    asked = Links(
        gbps=(gbps, wide),
        params=PARAMETERS,
        step_seconds=(STEP_SECONDS, STEP_SECONDS),
        outer=OuterSpec(
            fragments=min(interval, OuterSpec().fragments), interval=interval, codec=codec or "bf16"
        ),
        communication=CommunicationSpec(codec=codec),
        quorum=QuorumSpec(),
        steps=steps,
    )
    (narrow, _), _ = on_links(asked)
    return narrow


def choice(gbps: float, wide: float, codec: str | None, interval: int, steps: int) -> Choice:
    found = links(gbps, wide, interval, steps, codec)
    return Choice(found.codec, interval, found.hidden_share * found.merged_share)


def compared(gbps: float, wide: float, intervals: Sequence[int]) -> tuple[dict[int, Choice], Choice]:
    """Returns the policy's choice by interval, and the best of all fixed codecs and intervals."""
    points = [
        (gbps, wide, codec, interval, max(GRID_STEPS, 4 * interval))
        for codec in (None, *CODECS)
        for interval in intervals
    ]
    with multiprocessing.get_context("spawn").Pool(len(os.sched_getaffinity(0))) as pool:
        found = pool.starmap(choice, points)
    free, fixed = found[: len(intervals)], found[len(intervals) :]
    return {each.interval: each for each in free}, max(fixed, key=lambda each: each.share)

"""Bytes that go to the bucket at each cut, and come from it, or from a peer, at each heal."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.simulate.fleet.setting import DAY
from atoll_runtime.simulate.planner.run import Run

CUT_BYTES = 8
"""A parameter's in a global cut: Θ and the outer momentum, float32 (`atoll_runtime.checkpoint.store`)."""
MOMENTS_BYTES = 8
"""A parameter's in a unit's save: AdamW's two moments, float32 (`atoll_runtime.checkpoint.units`)."""
SEED_BYTES = 12
"""A parameter's of a unit that heals: Θ without the momentum, and both moments (`atoll_runtime.learner.seed`)."""


@dataclass(frozen=True, slots=True)
class CheckpointTraffic:
    """Of a whole run."""

    seconds_between_cuts: float
    cut_bytes: int
    moments_bytes: int
    """Of all units together, at each cut."""
    bytes_per_day: float

    @property
    def gbps(self) -> float:
        """Gbit/s into the bucket, on average."""
        return self.bytes_per_day * 8 / DAY / 1e9


def checkpoint_traffic(run: Run, step_seconds: float) -> CheckpointTraffic:
    """What is written when every cut is: the syncer's Θ and momentum, and each unit's moments."""
    between = run.checkpoint_steps * step_seconds
    cut = CUT_BYTES * run.parameters
    moments = MOMENTS_BYTES * run.parameters * run.units
    return CheckpointTraffic(between, cut, moments, (cut + moments) * DAY / between)

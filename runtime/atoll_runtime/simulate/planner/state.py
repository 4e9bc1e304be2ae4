"""Bytes of a run's state: what a shard of the syncer holds, and what goes to the bucket at each cut."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.simulate.fleet.setting import DAY
from atoll_runtime.simulate.planner.run import Run
from atoll_runtime.syncer.journal import LOG
from atoll_runtime.syncer.state import SHARE
from atoll_runtime.syncer.tape import LIMITS

CUT_BYTES = 8
"""A parameter's in a global cut or on a shard's volume: Θ and the outer momentum, float32."""
MOMENTS_BYTES = 8
"""A parameter's in a unit's save: AdamW's two moments, float32 (`atoll_runtime.checkpoint.units`)."""
PROCESS_BYTES = 0.4e9
"""Of a shard's process without a model: 0.37 GB were measured (2026-11-22)."""
ELEMENT_BYTES = 50
"""Memory of an element at most: Θ, momentum and the wire take 10; the rest is for merges, and for a cut on its way to
the bucket. 45 and 48 were measured with 10 and 36 million elements in one shard (2026-11-22)."""


@dataclass(frozen=True, slots=True)
class CheckpointTraffic:
    """Of a whole run."""

    seconds_between_cuts: float
    cut_bytes: int
    moments_bytes: int
    """Of all units together, at each cut."""
    bytes_per_day: float
    gbps: float
    """Gbit/s into the bucket, on average."""


def checkpoint_traffic(run: Run, step_seconds: float) -> CheckpointTraffic:
    """What is written when every cut is: the syncer's Θ and momentum, and each unit's moments."""
    between = run.checkpoint_steps * step_seconds
    cut = CUT_BYTES * run.parameters
    moments = MOMENTS_BYTES * run.parameters * run.units
    a_second = (cut + moments) / between
    return CheckpointTraffic(between, cut, moments, a_second * DAY, a_second * 8 / 1e9)


@dataclass(frozen=True, slots=True)
class ShardNeed:
    """Of the syncer's largest shard, in bytes."""

    memory: float
    """The most that it holds at once."""
    volume: float
    """What journal and tape take: of the journal two versions of all, and two logs."""


def shard_need(run: Run) -> ShardNeed:
    """From the spec alone."""
    shards = run.shard_layouts
    elements = max(shard.size for shard in shards)
    fragment = max(each.size for shard in shards for each in shard.fragments)
    contributions = run.overlap * run.units * fragment * (4 if run.codec == "float32" else 2)
    memory = max(PROCESS_BYTES + ELEMENT_BYTES * elements + contributions, SHARE * contributions)
    journal = 2 * (CUT_BYTES * elements + LOG)
    tape = min(LIMITS[run.tape], journal / 3)  # a quarter of the volume at most
    return ShardNeed(memory, journal + tape)

"""What one shard of the syncer needs of memory and disk."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.simulate.planner.run import Run
from atoll_runtime.syncer.journal import LOG
from atoll_runtime.syncer.state import SHARE
from atoll_runtime.syncer.tape import LIMITS

PROCESS_BYTES = 0.4e9
"""Of the process without a model: 0.37 GB were measured (2026-11-22)."""
ELEMENT_BYTES = 50
"""Memory of an element at most: Θ, momentum and the wire take 10; the rest is for merges, and for a cut on its way to
the bucket. 45 and 48 were measured with 10 and 36 million elements in one shard (2026-11-22)."""
RECORD_BYTES = 8
"""Of an element on the volume: Θ and momentum, float32."""


@dataclass(frozen=True, slots=True)
class SyncerNeed:
    """Of the largest shard, in bytes."""

    memory: float
    """The most that it holds at once."""
    volume: float
    """What journal and tape take: of the journal two versions of all, and two logs."""


def syncer_need(run: Run) -> SyncerNeed:
    """From the spec alone."""
    shards = run.shard_layouts
    elements = max(shard.size for shard in shards)
    fragment = max(each.size for shard in shards for each in shard.fragments)
    contributions = run.overlap * run.units * fragment * (4 if run.codec == "float32" else 2)
    memory = max(PROCESS_BYTES + ELEMENT_BYTES * elements + contributions, SHARE * contributions)
    journal = 2 * (RECORD_BYTES * elements + LOG)
    tape = min(LIMITS[run.tape], journal / 3)  # a quarter of the volume at most
    return SyncerNeed(memory, journal + tape)

"""What one shard of the syncer needs of memory and disk. Its modules need JAX's packages, a plan does not: what is
theirs is repeated here."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.simulate.planner.run import Run

PROCESS_BYTES = 0.4e9
"""Of the process without a model: 0.37 GB were measured (2026-11-22)."""
ELEMENT_BYTES = 50
"""Memory of an element at most: Θ, momentum and the wire take 10; the rest is for merges, and for a cut on its way to
the bucket. 45 and 48 were measured with 10 and 36 million elements in one shard (2026-11-22)."""
CONTRIBUTIONS = 4
"""Times the memory of contributions that there must be (`syncer.state.SHARE`)."""
RECORD_BYTES = 8
"""Of an element on the volume: Θ and momentum, float32."""
SEGMENT = 4
"""Times its snapshot's length to which the journal grows, but to LEAST_SEGMENT bytes at least (`syncer.journal`)."""
LEAST_SEGMENT = 64 << 20
TAPES = {"Decisions": 128 << 20, "Contributions": 4 << 30}
"""Bytes of a tape by its depth, a quarter of the volume at most (`syncer.tape.LIMITS`)."""


@dataclass(frozen=True, slots=True)
class SyncerNeed:
    """Of the largest shard, in bytes."""

    memory: float
    """The most that it holds at once."""
    volume: float
    """What journal and tape grow to."""


def syncer_need(run: Run) -> SyncerNeed:
    """From the spec alone."""
    shards = run.shard_layouts
    elements = max(shard.size for shard in shards)
    fragment = max(each.size for shard in shards for each in shard.fragments)
    contributions = run.overlap * run.units * fragment * (4 if run.codec == "float32" else 2)
    memory = max(PROCESS_BYTES + ELEMENT_BYTES * elements + contributions, CONTRIBUTIONS * contributions)
    segment = max(LEAST_SEGMENT, SEGMENT * RECORD_BYTES * elements) + RECORD_BYTES * fragment
    journal = segment + RECORD_BYTES * elements  # the next segment's snapshot stands before the old one goes
    return SyncerNeed(memory, journal + min(TAPES[run.tape], journal / 3))

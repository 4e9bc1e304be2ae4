"""The constants on which a run's decisions depend, read once from its contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_runtime.contract import RunContract

COORDINATOR = 0
"""The shard that keeps the run's clock, begins cuts and ends the run."""

TRANSFER_SECONDS = 600.0
"""Deadline of the transfer of one part in either direction, at both ends: 1 GB at 14 Mbit/s."""

FAST_FACTOR = 16.0
"""A unit's shortest step counts as at most this many times shorter than the median."""
STALE_INTERVALS, MOST_STALE_INTERVALS = 8, 256
"""An anchor may be `STALE_INTERVALS` old, or x times as old on a link that carries one round in x, up to the most."""


@dataclass(frozen=True)
class Rules:
    """The constants of a shard, some with their symbol in the paper."""

    fragments: int
    """P."""
    interval: int
    """H."""
    overlap: int
    """τ: rounds in flight."""
    quorum: int
    """K."""
    grace_fraction: float
    """γ."""
    grace_steps: float
    """Most learner steps of the grace window."""
    target_steps: int | None
    target_tokens: int | None
    cut_interval: int = 100
    """Global steps between two cuts."""
    shard: int = 0
    shards: int = 1
    """S."""
    patience: float = 30.0
    """Least seconds that a round waits for its quorum. Each attempt doubles them, up to 8 times. Also the seconds that
    a body may take in addition to `round.SLACK` times what its sender expects."""
    transfer: float = TRANSFER_SECONDS
    """Seconds that a body may take if its sender does not know its link."""
    silence: float = 30.0
    """Least seconds without a report after which a connected unit is not waited for."""

    slow_factor: float = math.inf
    """A unit does not set the clock's pace if its steps take more than this many times the median of the live units."""
    guard: bool = False
    """Refuses contributions with impossible claims, or with a norm that is an outlier."""
    step_tokens: Mapping[str, tuple[int, ...]] = field(default_factory=dict, hash=False)
    """Tokens of a step of each unit, or of each pool's units; see `claims.step_tokens`."""
    stale_intervals: int = STALE_INTERVALS
    """An anchor may be this many intervals old, or more on a slow link."""

    def oldest(self, turn: float) -> int:
        """Steps that an anchor may be old if the unit can be in one round of each fragment in `turn`."""
        intervals = self.stale_intervals * max(1, math.ceil(turn))
        return min(intervals, MOST_STALE_INTERVALS) * self.interval

    @property
    def silent_after(self) -> float:
        """`silence` for this shard. Infinite for shards other than 0, which get no reports and only know which units
        are connected."""
        return self.silence if self.shard == COORDINATOR else math.inf

    @classmethod
    def of(
        cls, run: RunContract, shard: int = 0, batches: Mapping[str, tuple[int, ...]] | None = None
    ) -> Rules:
        """`batches`: see `SyncerContract`. Raises `ValueError` naming the field that does not fit."""
        if not 0 <= shard < len(run.shards):
            raise ValueError(f"ATOLL_SHARD: {shard} must be within 0 … {len(run.shards) - 1}")
        outer = run.outer
        for name, value in (("fragments", outer.fragments), ("overlap", outer.overlap)):
            if value > outer.interval:
                raise ValueError(f"outer.{name}: {value} must be at most outer.interval ({outer.interval})")
        if run.target.global_steps is None and run.target.tokens is None:
            raise ValueError("target: give globalSteps, tokens, or both")
        return cls(
            fragments=outer.fragments,
            interval=outer.interval,
            overlap=outer.overlap,
            quorum=run.quorum.min,
            grace_fraction=run.quorum.grace.fraction,
            grace_steps=run.quorum.grace.max_steps,
            target_steps=run.target.global_steps,
            target_tokens=run.target.tokens,
            cut_interval=run.checkpoint.interval_steps,
            shard=shard,
            shards=len(run.shards),
            slow_factor=outer.slow_factor if outer.guard else math.inf,
            guard=outer.guard,
            step_tokens={
                name: tuple(batch * run.data.sequence_length for batch in each)
                for name, each in (batches or {}).items()
            },
        )

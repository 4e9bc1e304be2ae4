"""The training in the regions, the same for both systems."""

from __future__ import annotations

import math
from dataclasses import dataclass

from atoll_bench.parity.sizes import SIZES
from atoll_runtime.contract import (
    CheckpointSpec,
    DataSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    RunContract,
    SyncerAddress,
    TargetSpec,
)
from atoll_runtime.model import describe
from atoll_runtime.simulate.blank import run_contract

SIZE = "250k"
"""A size of `atoll bench parity`: the largest one with steps that take little of two cores."""
LENGTH, BATCH = 64, 24
"""Tokens of a sequence, and sequences of a region's step. With these a step takes several times as long as Atoll's
other work, as a step of seconds does."""
WARMUP_STEPS = 20


@dataclass(frozen=True)
class Setting:
    """One training without its seed."""

    data: str
    """URI."""
    steps: int
    interval: int = OuterSpec().interval
    model: ModelSpec = SIZES[SIZE].model
    batch: int = BATCH

    @property
    def step_tokens(self) -> int:
        """Tokens of one region's step."""
        return self.batch * LENGTH

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in describe(self.model))

    def run(self, seed: int, bucket: str, host: str) -> RunContract:
        """The contract of a run with its syncer at `host`."""
        return run_contract(
            model=self.model.model_copy(update={"seed": seed}),
            data=DataSpec(uri=self.data, sequence_length=LENGTH, seed=seed),
            inner=InnerSpec(learning_rate=SIZES[SIZE].rates[1], warmup_steps=WARMUP_STEPS),
            outer=OuterSpec(interval=self.interval, fragments=min(self.interval, OuterSpec().fragments)),
            target=TargetSpec(global_steps=self.steps),
            checkpoint=CheckpointSpec(uri=bucket, interval_steps=self.steps + 1),
            shards=(SyncerAddress(host=host),),
        )

"""The planner's input: a run, and assumptions about the hardware."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from atoll_runtime.contract import (
    CommunicationSpec,
    OuterSpec,
    QuorumSpec,
    SeedSource,
    TapeDepth,
    TargetSpec,
)
from atoll_runtime.protocol.fragments import Layout, TensorInfo, build_layout, cut
from atoll_runtime.simulate.fleet.setting import YEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Units of one kind."""

    name: str
    generation: str
    """A key of `needs.CHIPS`."""
    units: int
    chips: int
    """Of one unit."""
    batch: int
    """Sequences of one unit in one inner step."""
    link_gbps: float | None = None
    """Gbit/s of a unit's link, in each direction; None: not known."""
    sizes: tuple[int, ...] = ()
    """Possible chips of a unit with this accelerator, of one slice or several. Empty: only the present number."""
    most_units: int = 256
    """The most units that a pool may have."""

    @property
    def all_chips(self) -> int:
        return self.units * self.chips

    def split(self, numerator: int, denominator: int) -> Pool | None:
        """Returns the pool with the same chips and batch in units·n/d units; None if no such slice or batch exists."""
        units, rest = divmod(self.units * numerator, denominator)
        chips, chips_rest = divmod(self.chips * denominator, numerator)
        batch, batch_rest = divmod(self.batch * denominator, numerator)
        if rest or chips_rest or batch_rest or not batch:
            return None
        if not 1 <= units <= self.most_units or chips not in self.sizes:
            return None
        return replace(self, units=units, chips=chips, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run: the parts of a TrainingRun's spec that affect its cost."""

    name: str
    tensors: tuple[TensorInfo, ...]
    sequence_length: int
    pools: tuple[Pool, ...]
    outer: OuterSpec
    communication: CommunicationSpec
    quorum: QuorumSpec
    target: TargetSpec
    checkpoint_steps: int
    """Global steps between two cuts."""
    audit: int | None = None
    """Global steps between two audits; None: no audits."""
    seed: SeedSource = "Checkpoint"
    shards: int = 1
    """S."""
    tape: TapeDepth = "Decisions"

    @property
    def units(self) -> int:
        """M."""
        return sum(pool.units for pool in self.pools)

    @property
    def codec(self) -> str:
        """The widest codec that units use."""
        return self.communication.codec or self.outer.codec

    @property
    def knobs(self) -> dict[str, int | str]:
        """The values that can be chosen, by the paper's symbols."""
        return {
            "M": self.units,
            "K": self.quorum.min,
            "H": self.outer.interval,
            "P": self.outer.fragments,
            "tau": self.outer.overlap,
            "codec": self.outer.codec,
        }

    def turned(self, quorum: int | None = None, **outer: int | str) -> Run:
        """Returns the run with another K, and with other values in `outer`."""
        return replace(
            self,
            quorum=self.quorum.model_copy(update={"min": quorum or self.quorum.min}),
            outer=self.outer.model_copy(update=outer),
        )

    @property
    def chips(self) -> int:
        return sum(pool.all_chips for pool in self.pools)

    @property
    def layout(self) -> Layout:
        """The fragments into which syncer and learners cut the model. Raises `LayoutError`."""
        return _layout(self.tensors, self.outer.fragments)

    @property
    def shard_layouts(self) -> list[Layout]:
        """The layout of each shard of the syncer. Raises `LayoutError`."""
        whole = _layout(self.tensors, self.outer.fragments, self.shards)
        return [whole.shard(s) for s in range(self.shards)]

    @property
    def pieces(self) -> int:
        """The most fragments that the model can be cut into."""
        return len(cut(self.tensors))

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)


@lru_cache(maxsize=16)
def _layout(tensors: tuple[TensorInfo, ...], fragments: int, shards: int = 1) -> Layout:
    return build_layout(tensors, fragments, shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Values that the run's spec does not give."""

    mtbi: float = YEAR
    """Mean seconds between interruptions of one chip, from the failure study, which calls the value aggressive."""
    pool_mtbi: Mapping[str, float] = field(default_factory=dict)
    """By pool, where it differs, as for Spot capacity."""
    mfu: float = 0.4
    """Share of the chips' peak that an inner step reaches. INTELLECT-1 measured 0.36 to 0.41 (arXiv 2412.01152); the
    simulators of the DiLoCo papers assume 0.6."""
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of an inner step by pool, where it was measured."""
    link_gbps: float | None = None
    """Gbit/s of a unit's link in a pool where the run does not give it."""
    seed_gbps: float | None = None
    """Gbit/s at which a healing unit receives its state. None: `needs.SEED_GBPS` of the run's seed source."""
    repair_seconds: float = 600.0
    """From the loss of a host until a slice replaces it. A TPU node under repair was back after about ten minutes.
    0: the host is healthy, or there is a spare slice."""
    seed: int = 0
    """Seed of the random numbers."""

    def link_of(self, pool: Pool) -> float | None:
        """Gbit/s of a unit's link, in each direction; None: not known."""
        return self.link_gbps if pool.link_gbps is None else pool.link_gbps

    def least_link(self, run: Run) -> float | None:
        """Gbit/s of the slowest known link; None: no link is known."""
        return min(filter(None, map(self.link_of, run.pools)), default=None)

    def mtbi_of(self, pool: Pool) -> float:
        """Mean seconds between interruptions of one chip of `pool`."""
        return self.pool_mtbi.get(pool.name, self.mtbi)

"""What the planner is told: a run, and what is assumed of the world."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from atoll_runtime.contract import Codec, CommunicationSpec, SeedSource, TapeDepth
from atoll_runtime.protocol.fragments import Layout, TensorInfo, build_layout
from atoll_runtime.simulate.blank import ADAPTIVE
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
    """Chips of the units that this accelerator's slices make, one or several; none: only as it is."""
    most_units: int = 256
    """That a pool may have."""

    @property
    def all_chips(self) -> int:
        return self.units * self.chips

    def split(self, numerator: int, denominator: int) -> Pool | None:
        """The same chips and the same batch in units·n/d units, or None where no such slice or batch exists."""
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
    """A training run: what of a TrainingRun's spec has a price."""

    name: str
    tensors: tuple[TensorInfo, ...]
    sequence_length: int
    pools: tuple[Pool, ...]
    fragments: int
    """P."""
    interval: int
    """H."""
    overlap: int
    """τ."""
    codec: Codec
    """The widest that units use."""
    quorum: int
    """K."""
    grace_fraction: float
    """γ."""
    grace_steps: float
    """A round waits for more than K for so many steps at most."""
    checkpoint_steps: int
    """Global steps between two cuts."""
    communication: CommunicationSpec = ADAPTIVE
    """What of their links' use is fixed."""
    seed: SeedSource = "Checkpoint"
    shards: int = 1
    """S."""
    tape: TapeDepth = "Decisions"
    target_steps: int | None = None
    target_tokens: int | None = None

    @property
    def units(self) -> int:
        """M."""
        return sum(pool.units for pool in self.pools)

    @property
    def knobs(self) -> dict[str, int | str]:
        """What can be chosen, by the paper's symbols."""
        return {
            "M": self.units,
            "K": self.quorum,
            "H": self.interval,
            "P": self.fragments,
            "tau": self.overlap,
            "codec": self.codec,
        }

    @property
    def grace(self) -> bool:
        """A round waits a little for more than K."""
        return self.grace_fraction > 0 and self.grace_steps > 0

    @property
    def chips(self) -> int:
        return sum(pool.all_chips for pool in self.pools)

    @property
    def layout(self) -> Layout:
        """The model in fragments, as syncer and learners cut it. Raises `LayoutError`."""
        return _layout(self.tensors, self.fragments)

    @property
    def shard_layouts(self) -> list[Layout]:
        """The same as each shard of the syncer has it. Raises `LayoutError`."""
        whole = _layout(self.tensors, self.fragments, self.shards)
        return [whole.shard(s) for s in range(self.shards)]

    @property
    def pieces(self) -> int:
        """The most fragments that the model can be cut into."""
        return sum(tensor.shape[0] if tensor.stacked else 1 for tensor in self.tensors)

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors)


@lru_cache(maxsize=16)
def _layout(tensors: tuple[TensorInfo, ...], fragments: int, shards: int = 1) -> Layout:
    return build_layout(tensors, fragments, shards)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What the run's spec does not say."""

    mtbi: float = YEAR
    """Mean seconds between interruptions of one chip: the failure study's, which it calls aggressive."""
    pool_mtbi: Mapping[str, float] = field(default_factory=dict)
    """By pool, where it is another one: Spot capacity."""
    mfu: float = 0.4
    """Share of the chips' peak that an inner step reaches: 0.36 to 0.41 were measured in INTELLECT-1 (arXiv
    2412.01152); the simulators of the DiLoCo papers assume 0.6."""
    step_seconds: Mapping[str, float] = field(default_factory=dict)
    """Seconds of an inner step by pool, where it was measured."""
    link_gbps: float | None = None
    """Of a unit in a pool whose link the run does not tell."""
    seed_gbps: float | None = None
    """At which a healing unit gets its state; None: as the fleet's simulation assumes of the bucket and of a peer."""
    repair_seconds: float = 600.0
    """From the loss of a host until a slice stands in its place: a TPU node under repair was back after about ten
    minutes. 0: the host is healthy, or a spare slice waits."""
    seed: int = 0
    """Of the random numbers."""

    def link_of(self, pool: Pool) -> float | None:
        """Gbit/s of a unit's link, in each direction; None: not known."""
        return self.link_gbps if pool.link_gbps is None else pool.link_gbps

    def least_link(self, run: Run) -> float | None:
        """Gbit/s of the slowest link that is known."""
        return min(filter(None, map(self.link_of, run.pools)), default=None)

    def mtbi_of(self, pool: Pool) -> float:
        """Of one chip of `pool`."""
        return self.pool_mtbi.get(pool.name, self.mtbi)

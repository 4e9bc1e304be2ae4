"""The setting of a training: model, data, learners, their speeds, and their failures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

from atoll_runtime.contract import (
    CheckpointSpec,
    CommunicationSpec,
    DataSpec,
    InnerSpec,
    ModelSpec,
    OuterSpec,
    QuorumSpec,
    RunContract,
    TargetSpec,
)
from atoll_runtime.simulate.blank import run_contract
from atoll_runtime.simulate.shard import COSTS, Costs

STREAMS = 8
"""Streams of data, dealt to the learners in turn; also the most learners. Whatever their number, all learners together
read the same examples in the same global step, as long as they step together."""
HELD_OUT = 1024
"""The most sequences of the held-out split on which a model is evaluated: always the same examples, evenly spaced."""
TOGETHER = 64
"""Held-out sequences in one evaluation. A rest that does not fill one is left out."""
FIRST_STEPS = 1
"""Inner steps beyond the global ones. A pace needs two reports, after which the syncer's clock makes up lost time."""
CUT_STEPS = 100
"""Global steps between two cuts, the contract's default. A lost learner is seeded again from a cut."""


@dataclass(frozen=True)
class Failures:
    """Losses of learners, independent of each other, at exponential intervals."""

    every: float
    """Mean seconds that a learner trains before it is lost."""
    away: float
    """Seconds from its loss to the first step of its next incarnation."""

    @property
    def present(self) -> float:
        """Share of the time in which a learner trains."""
        return self.every / (self.every + self.away)


@dataclass(frozen=True)
class Setting:
    """One training without its seed. Seconds are simulated; a step of the slowest learner takes about one."""

    model: ModelSpec
    inner: InnerSpec
    outer: OuterSpec
    quorum: QuorumSpec
    data: str
    """URI."""
    length: int
    """Tokens of a sequence."""
    sequences: int
    """Sequences of all learners in one step, a multiple of STREAMS."""
    steps: int
    """Steps of plain data-parallel training with the same number of tokens."""
    paces: tuple[float, ...] = (1.0,)
    """Mean seconds of an inner step of each learner. Their number divides STREAMS."""
    jitter: float = 0.0
    """Relative spread of a learner's pace; see `fleet.scenario.drift`."""
    failures: Failures | None = None
    costs: Costs = COSTS
    audit: int | None = None
    """Global steps between two audits of the learners' results. None: no audits."""

    @property
    def learners(self) -> int:
        """M."""
        return len(self.paces)

    @property
    def batch(self) -> int:
        """Sequences of one learner's step."""
        return self.sequences // self.learners

    @property
    def global_steps(self) -> int:
        """Steps of the syncer's clock, at the slowest learner's pace, that are expected to train the tokens of `steps`.

        The tokens of one training differ from that, because speeds and failures are random.
        """
        peers = self.paces.count(max(self.paces))
        latest = NormalDist().inv_cdf((peers - 0.375) / (peers + 0.25))  # of `peers` draws (Blom, 1958)
        slowest = max(self.paces) * (1 + self.jitter * latest)
        made = sum(slowest / pace for pace in self.paces) / self.learners
        present = self.failures.present if self.failures else 1.0
        return max(1, math.ceil(self.steps / (made * present)) - FIRST_STEPS)

    def run(self, seed: int) -> RunContract:
        """Returns the contract of a run with this setting. `seed` is the seed of model and data."""
        return run_contract(
            model=self.model.model_copy(update={"seed": seed}),
            data=DataSpec(uri=self.data, sequence_length=self.length, seed=seed),
            inner=self.inner,
            outer=self.outer,
            communication=CommunicationSpec(codec=self.outer.codec),
            quorum=self.quorum,
            target=TargetSpec(global_steps=self.global_steps),
            checkpoint=CheckpointSpec(
                uri=self.data, interval_steps=CUT_STEPS if self.failures else self.global_steps + 1
            ),
            audit=self.audit,
        )

"""One training of the proof: what identifies it, and its setting."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from atoll_bench.parity.sizes import SIZES
from atoll_runtime.contract import GraceSpec, InnerSpec, OuterSpec, QuorumSpec
from atoll_runtime.simulate.training.setting import Failures, Setting

Method = Literal["data-parallel", "decoupled"]
SLOW, FAST = 1.0, 0.82
"""Seconds of a step. Half of the learners are 18 % faster than the others (paper, §4.4)."""
JITTER = 0.10
"""Relative spread of a learner's pace (§4.4)."""
FAILURE_SECONDS, AWAY_SECONDS = 200.0, 40.0
"""A learner is lost every 200 steps and misses 40, so of eight learners one or two are away at any time. If eight
learners share 1.2 million chips with an MTBI of a year, each is lost about every 210 s. So with steps of one second
this is the published storm."""


@dataclass(frozen=True)
class Trial:
    """Equal trials give equal results. For data-parallel training, fields that do not apply have their defaults."""

    case: str
    """A letter of the proof; `tune` for a trial of a learning rate."""
    size: str
    method: Method
    learners: int
    codec: Literal["none", "bf16", "float32", "int4"]
    """`none` for data-parallel training."""
    seed: int
    steps: int
    """Steps of data-parallel training with the same tokens."""
    rate: float
    """Inner learning rate."""
    policy: str = "K=M"
    """For how many learners a round waits: `K=M`, `K=1` (no grace), `K=1+grace`."""
    speeds: Literal["equal", "mixed"] = "equal"
    failures: bool = False

    @classmethod
    def of(cls, row: dict[str, Any]) -> Trial:
        return cls(**{field.name: row[field.name] for field in fields(cls) if field.name in row})

    @property
    def tokens(self) -> int:
        """The budget in tokens."""
        return self.steps * SIZES[self.size].tokens

    @property
    def paces(self) -> tuple[float, ...]:
        """Mean seconds of a step of each learner."""
        fast = self.learners // 2 if self.speeds == "mixed" else 0
        return (FAST,) * fast + (SLOW,) * (self.learners - fast)

    @property
    def speed(self) -> float:
        """Tokens that all learners train in a simulated second while none is idle or lost."""
        return sum(1 / pace for pace in self.paces) * SIZES[self.size].tokens / self.learners

    def setting(self, data: str) -> Setting:
        """The setting of this trial on the data set at this URI."""
        size, count = SIZES[self.size], self.learners
        grace = GraceSpec() if self.policy == "K=1+grace" else GraceSpec(fraction=0.0)
        return Setting(
            model=size.model,
            inner=InnerSpec(
                learning_rate=self.rate,
                warmup_steps=size.warmup,
                accumulation=size.parts(size.sequences // count),
            ),
            outer=OuterSpec(fragments=size.fragments, codec="bf16" if self.codec == "none" else self.codec),
            quorum=QuorumSpec(min=count if self.policy == "K=M" else 1, grace=grace),
            data=data,
            length=size.length,
            sequences=size.sequences,
            steps=self.steps,
            paces=self.paces,
            jitter=JITTER if self.speeds == "mixed" else 0.0,
            failures=Failures(FAILURE_SECONDS, AWAY_SECONDS) if self.failures else None,
        )

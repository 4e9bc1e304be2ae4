"""How long an inner step takes, and the clocks that follow from it."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.simulate.planner.chips import CHIPS
from atoll_runtime.simulate.planner.run import Assumptions, Pool, Run

LEAST_SECONDS = 0.01
"""Of an inner step: dispatch, input, and a collective of the unit's hosts take a few milliseconds however small the
model is. A judgement; it counts for models below a billion parameters alone."""
FLOPS_PER_PARAMETER = 6.0
"""And token, forward and backward (Kaplan et al., arXiv 2001.08361); attention over the sequence is left out."""


@dataclass(frozen=True, slots=True)
class Step:
    """An inner step of one unit."""

    seconds: float
    tokens: int
    source: str
    """`compute`, `least` where the model is too small for its chips, or `given`."""


def step_of(pool: Pool, run: Run, assumed: Assumptions) -> Step:
    """Of one unit of `pool`."""
    tokens = pool.batch * run.sequence_length
    given = assumed.step_seconds.get(pool.name)
    if given is not None:
        return Step(given, tokens, "given")
    computed = (
        FLOPS_PER_PARAMETER
        * run.parameters
        * tokens
        / (pool.chips * CHIPS[pool.generation].flops * assumed.mfu)
    )
    return (
        Step(computed, tokens, "compute")
        if computed > LEAST_SECONDS
        else Step(LEAST_SECONDS, tokens, "least")
    )


def global_step(run: Run, assumed: Assumptions) -> float:
    """Seconds of a step of the syncer's clock: the slowest unit's (`sync.pace`)."""
    return max(step_of(pool, run, assumed).seconds for pool in run.pools)

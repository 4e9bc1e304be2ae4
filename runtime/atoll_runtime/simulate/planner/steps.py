"""What a chip computes and holds, and how long an inner step takes."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.simulate.planner.run import Assumptions, Pool, Run

LEAST_SECONDS = 0.01
"""Of an inner step: dispatch, input, and a collective of the unit's hosts take a few milliseconds however small the
model is. A judgement; it counts for models below a billion parameters alone."""
FLOPS_PER_PARAMETER = 6.0
"""And token, forward and backward (Kaplan et al., arXiv 2001.08361); attention over the sequence is left out."""


@dataclass(frozen=True, slots=True)
class Chip:
    """One TPU chip."""

    flops: float
    """Peak FLOP/s in bfloat16."""
    memory: float
    """Bytes of HBM."""


CHIPS = {
    "v5e": Chip(197e12, 16e9),
    "v5p": Chip(459e12, 95e9),
    "v6e": Chip(918e12, 32e9),
    "tpu7x": Chip(2307e12, 192e9),
}
"""By generation, as in the vendor's pages of v5e, v5p, v6e and TPU7x."""


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
    flops = pool.chips * CHIPS[pool.generation].flops * assumed.mfu
    computed = FLOPS_PER_PARAMETER * run.parameters * tokens / flops
    if computed > LEAST_SECONDS:
        return Step(computed, tokens, "compute")
    return Step(LEAST_SECONDS, tokens, "least")


def global_step(run: Run, assumed: Assumptions) -> float:
    """Seconds of a step of the syncer's clock: the slowest unit's (`protocol.pace`)."""
    return max(step_of(pool, run, assumed).seconds for pool in run.pools)

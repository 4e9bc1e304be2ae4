"""Computes what a run needs: time for a step and a heal, and bytes for its state."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.protocol.fragments import cut
from atoll_runtime.simulate.fleet.scenario import clock_step
from atoll_runtime.simulate.fleet.setting import DAY, Heal
from atoll_runtime.simulate.planner.run import Assumptions, Pool, Run
from atoll_runtime.syncer.journal import STATES
from atoll_runtime.syncer.state import SHARE, VERSION_BYTES
from atoll_runtime.syncer.tape import LIMITS

LEAST_SECONDS = 0.01
"""Least seconds of an inner step. Dispatch, input and a collective of the unit's hosts take a few milliseconds for any
model. The value is a judgement; it matters only below a billion parameters."""
FLOPS_PER_PARAMETER = 6.0
"""FLOPs per parameter and token, forward and backward (Kaplan et al., arXiv 2001.08361), without attention."""
SEED_BYTES = 12
"""Bytes that a healing unit loads per parameter: Θ without the outer momentum, and both moments
(`atoll_runtime.learner.seed`)."""
SEED_GBPS = {"Checkpoint": 32.0, "Peer": 200.0}
"""Assumed Gbit/s at which one replica of the state arrives: from a bucket that many units read at the same time, and
from the memory of another unit, as fast as one host's network."""
PULL = 30.0
"""Seconds to pull the image, one or two gigabytes from a near registry. A replaced slice does not have it yet."""
CUT_BYTES = 8
"""Bytes of a parameter in a global cut or on a shard's volume: Θ and the outer momentum, float32."""
MOMENTS_BYTES = 8
"""Bytes of a parameter in a unit's save: AdamW's two moments, float32 (`atoll_runtime.checkpoint.units`)."""
PROCESS_BYTES = 0.4e9
"""Memory of a shard's process without a model. Measured: 0.37 GB (2026-11-22)."""
ELEMENT_BYTES = 54
"""Upper bound of the memory per element. Θ and momentum of the newest versions 8, their wire in the run's codec 2 (in
float32 it is Θ), in bf16, int8 and int4 for hosts that ask 4; Θ and momentum of the cut that is saved and of a newer
one that waits 16; a copy of the saved one, tensor by tensor, 8, and Orbax's of that 16 (measured 2026-11-30)."""
HELD_ROUNDS = 5
"""Rounds with contributions in memory: those at work, and others that wait for slow links. With fewer, slow links would
be in fewer rounds than they carry (docs/protocol.md, Slow links)."""
EVEN = 4 / 3
"""The most elements of a fragment, relative to the mean. A larger one needs memory and bandwidth for itself alone."""


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
"""By generation, from the vendor's pages on v5e, v5p, v6e and TPU7x."""


@dataclass(frozen=True, slots=True)
class Step:
    """An inner step of one unit."""

    seconds: float
    tokens: int
    source: str
    """`compute`, `given`, or `least` if the model is too small for its chips."""


def step_of(pool: Pool, run: Run, assumed: Assumptions) -> Step:
    """Returns the inner step of one unit of `pool`."""
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
    """Returns the seconds of a step of the syncer's clock."""
    return clock_step(unit_steps(run, assumed), run.outer)


def unit_steps(run: Run, assumed: Assumptions) -> list[float]:
    """Returns the seconds of an inner step of each unit."""
    return [seconds for pool in run.pools for seconds in [step_of(pool, run, assumed).seconds] * pool.units]


def heal_of(run: Run, step_seconds: float, assumed: Assumptions) -> Heal:
    """Returns the heal of a unit that loses a host. `step_seconds`: of the syncer's clock.

    Θ from the bucket is as old as the newest cut, so all fragments must be fetched again from the syncer; those of a
    peer are current. The unit then contributes to the next fragment that is due. It loses the steps since each
    fragment was last sent, half an interval on average, and what was in flight.
    """
    rate = seed_gbps(run, assumed)
    stale = run.parameters * BITS[run.codec] if run.seed == "Checkpoint" else 0.0
    return Heal(
        pull=PULL if assumed.repair_seconds else 0.0,
        restore=run.parameters * SEED_BYTES * 8 / (rate * 1e9),
        catch_up=stale / ((assumed.least_link(run) or rate) * 1e9)
        + run.outer.interval / run.outer.fragments * step_seconds,
        unmerged=(run.outer.interval / 2 + run.outer.overlap) * step_seconds,
    )


def seed_gbps(run: Run, assumed: Assumptions) -> float:
    """Returns the Gbit/s at which a unit of this run receives its state."""
    return assumed.seed_gbps or SEED_GBPS[run.seed]


def stages(heal: Heal, repair_seconds: float) -> dict[str, float]:
    """Returns the seconds of each stage, in order, and their total."""
    found = {
        "detect": heal.detect,
        "schedule": heal.schedule,
        "hardware": max(0.0, repair_seconds - heal.detect - heal.schedule),
        "pull": heal.pull,
        "start": heal.start,
        "restore": heal.restore,
        "catch_up": heal.catch_up,
    }
    return {**found, "total": sum(found.values())}


def checkpoint_traffic(run: Run, step_seconds: float) -> dict[str, float]:
    """Returns the traffic if every cut is written: the syncer's Θ and momentum, and the moments of all units."""
    between = run.checkpoint_steps * step_seconds
    cut = CUT_BYTES * run.parameters
    moments = MOMENTS_BYTES * run.parameters * run.units
    a_second = (cut + moments) / between
    return {
        "seconds_between_cuts": between,
        "cut_bytes": cut,
        "moments_bytes": moments,
        "bytes_per_day": a_second * DAY,
        "gbps": a_second * 8 / 1e9,
    }


def shard_need(run: Run) -> dict[str, float]:
    """Returns the bytes of memory and volume that the largest shard needs, from the spec only, and the size of the
    largest fragment relative to the mean. The journal takes two versions of every fragment, and two logs."""
    shards = run.shard_layouts
    elements = max(shard.size for shard in shards)
    fragment = max(each.size for shard in shards for each in shard.fragments)
    rounds = max(run.outer.overlap, min(HELD_ROUNDS, run.outer.fragments))
    contributions = rounds * run.units * fragment * (4 if run.outer.codec == "float32" else 2)
    merges = min(run.outer.overlap, run.outer.fragments) * VERSION_BYTES * fragment
    held = PROCESS_BYTES + ELEMENT_BYTES * elements + merges
    memory = max(held + contributions, SHARE * contributions)
    journal = 2 * CUT_BYTES * elements + STATES
    tape = min(LIMITS[run.tape], journal / 3)  # a quarter of the volume at most
    mean = run.parameters / run.outer.fragments / run.shards
    return {"memory": memory, "volume": journal + tape, "largest_fragment": fragment / mean}


def even_fragments(run: Run) -> int:
    """Returns the largest P up to the run's with which no fragment exceeds `EVEN`; 0 if there is none."""
    most = EVEN * run.parameters / run.shards / max(piece.size for piece in cut(run.tensors))
    each = (run.turned(fragments=P) for P in range(min(run.outer.fragments, int(most)), 0, -1))
    return next((few.outer.fragments for few in each if shard_need(few)["largest_fragment"] <= EVEN), 0)

"""How long a unit is away: from the loss of one of its hosts until it trains again."""

from __future__ import annotations

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.simulate.fleet.setting import Heal
from atoll_runtime.simulate.planner.run import Assumptions, Run

SEED_BYTES = 12
"""A parameter's of a unit that heals: Θ without the momentum, and both moments (`atoll_runtime.learner.seed`)."""
SEED_GBPS = {"Checkpoint": 32.0, "Peer": 200.0}
"""Gbit/s at which one replica of the state comes in, assumed: a bucket that many units read at a time, and the
memory of another unit, as fast as one host's network."""
PULL = 30.0
"""A slice that was replaced has no image yet: one or two gigabytes from a registry close by."""


def heal_of(run: Run, step_seconds: float, assumed: Assumptions) -> Heal:
    """Of a unit that loses a host; `step_seconds` of the syncer's clock.

    From the bucket Θ is as old as the newest cut, so that all fragments come once more from the syncer; a peer's are
    of now. Then it is counted in with the next fragment that is due. What dies with it are the steps since each
    fragment was sent last, half an interval on average, and what was in flight.
    """
    rate = seed_gbps(run, assumed)
    stale = run.parameters * BITS[run.codec] if run.seed == "Checkpoint" else 0.0
    return Heal(
        pull=PULL if assumed.repair_seconds else 0.0,
        restore=run.parameters * SEED_BYTES * 8 / (rate * 1e9),
        catch_up=stale / ((assumed.least_link(run) or rate) * 1e9)
        + run.interval / run.fragments * step_seconds,
        unmerged=(run.interval / 2 + run.overlap) * step_seconds,
    )


def seed_gbps(run: Run, assumed: Assumptions) -> float:
    """At which a unit of this run gets its state."""
    return assumed.seed_gbps or SEED_GBPS[run.seed]


def stages(heal: Heal, repair_seconds: float) -> dict[str, float]:
    """Seconds of each stage, in their order, and of all together."""
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

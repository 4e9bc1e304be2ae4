"""What the simulation of rounds is asked for: who is there and when, and the time that things take."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.contract import GraceSpec
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.fleet.speeds import DRIFT_STEPS

NO_CUTS = 10**9
"""Global steps between two checkpoints, which stop nobody."""


def simulated_rules(
    *, fragments: int, interval: int, overlap: int, quorum: int, grace: GraceSpec, steps: int
) -> Rules:
    """Rules of one shard that takes no cut, until its clock has made so many steps."""
    return Rules(
        fragments=fragments,
        interval=interval,
        overlap=overlap,
        quorum=quorum,
        grace_fraction=grace.fraction,
        grace_steps=grace.max_steps,
        target_steps=steps,
        target_tokens=None,
        cut_interval=NO_CUTS,
    )


@dataclass(frozen=True)
class Wire:
    """A learner's link to the syncer. Both directions carry as much at the same time."""

    push: float
    """Seconds of a contribution."""
    fetch: float
    """Seconds of a version."""
    delay: float = 0.0
    """Seconds that a message or the first byte of a body is under way."""
    outages: tuple[tuple[float, float], ...] = ()
    """From when until when it carries nothing, in seconds since the run began, in order and apart."""

    def end(self, begun: float, seconds: float) -> float:
        """When a body that takes so many seconds is through; an outage only holds it up."""
        end = begun + seconds
        for first, last in self.outages:
            if first < end and last > begun:
                end += last - max(first, begun)
        return end


@dataclass(frozen=True)
class Life:
    """When an incarnation is there."""

    unit: str
    pace: float
    """Mean seconds of an inner step."""
    begins: float = 0.0
    """Seconds since the run began; it is seeded with what is current then."""
    incarnation: int = 1
    last: int | None = None
    """It is killed when it is asked for a round beyond this global step; None: it stays."""
    wire: Wire | None = None
    """None: as the scenario's costs say."""


@dataclass(frozen=True)
class Costs:
    """Seconds of what is not an inner step; the defaults fit steps of about a second.

    Together 0.6 of a step: an overlap of τ = 2 steps hides them and leaves room for grace. Goodput does not depend on
    them as long as they are hidden.
    """

    push: float = 0.2
    merge: float = 0.1
    write: float = 0.1
    fetch: float = 0.2


@dataclass(frozen=True)
class Scenario:
    """What is simulated, until the clock reaches the rules' target."""

    rules: Rules
    """Of one shard, with a target in steps; no cut is taken, since it stops nobody."""
    lives: tuple[Life, ...]
    jitter: float = 0.0
    """Relative spread of a learner's pace."""
    drift_steps: int = DRIFT_STEPS
    waits: bool = False
    """A synchronous control, not what our learners do: a learner answers the round of step t after its own step t, and
    makes no step that is more than τ rounds ahead of the newest merge it has taken."""
    costs: Costs = Costs()

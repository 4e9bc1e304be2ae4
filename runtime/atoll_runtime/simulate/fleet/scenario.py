"""What the simulation of rounds is asked for: who is there and when, and the time that things take."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.contract import Codec, CommunicationSpec, GraceSpec
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.blank import FIXED, NO_CUTS
from atoll_runtime.simulate.link import Wire
from atoll_runtime.simulate.shard import COSTS, Costs


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
class Unit:
    """A learner that stays from the beginning to the end."""

    name: str
    pace: float
    """Mean seconds of an inner step."""
    wire: Wire | None = None
    """None: as the scenario's costs say."""


@dataclass(frozen=True)
class Scenario:
    """What is simulated, until the clock reaches the rules' target."""

    rules: Rules
    """Of one shard, with a target in steps; no cut is taken, since it stops nobody."""
    units: tuple[Unit, ...]
    jitter: float = 0.0
    """Relative spread of a learner's pace."""
    costs: Costs = COSTS
    codec: Codec = "float32"
    """Of the run."""
    communication: CommunicationSpec = FIXED

"""Learners of given speeds and a syncer in simulated time: the programs of the pods, without tensor values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.messages import Part
from atoll_runtime.simulate.blank import BlankArrays, blank_contract, blank_layout
from atoll_runtime.simulate.fleet.learner import Learner
from atoll_runtime.simulate.fleet.scenario import Scenario, drifts
from atoll_runtime.simulate.shard import Shard

SLOWNESS = 8
"""A run has stalled when it takes more than this many times the time of its steps."""


@dataclass(frozen=True)
class Outcome:
    """A whole run in a few numbers. Shares are of all tokens trained."""

    seconds: float
    goodput: float
    """Share of the learners' time that was spent in inner steps."""
    merged_share: float
    discarded: Mapping[str, float]
    """By reason, with the ledger's names."""
    in_flight: float
    """Neither merged nor discarded when the run ended."""
    mean_members: float
    """Mean number of learners in a merge."""


class World:
    """One run of a scenario. Iterate over `merges` once; afterwards the other members hold the results."""

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        rules = scenario.rules
        self.scenario = scenario
        layout = blank_layout([[1] * rules.fragments])
        first = {name: np.zeros(shape, np.float32) for name, shape in layout.shapes.items()}
        run = blank_contract(rules, scenario.codec, scenario.communication)
        self.shard = Shard(run, rules, layout, first, BlankArrays(scenario.codec), scenario.costs)
        self.loop = self.shard.loop
        self.loop.HOP = 0.0
        steps = drifts(scenario.paces, scenario.jitter, np.random.default_rng(seed))
        self.learners = {
            unit.name: Learner(scenario, unit, self.shard, drift)
            for unit, drift in zip(scenario.units, steps, strict=True)
        }

    @property
    def accounts(self) -> dict[str, Account]:
        """The syncer's own ledger, by unit."""
        return {name: unit.account for name, unit in self.shard.machine.units.items()}

    @property
    def goodput(self) -> float:
        """The share of the learners' time in inner steps."""
        busy = sum(learner.busy for learner in self.learners.values())
        return busy / (busy + sum(learner.idle for learner in self.learners.values()))

    def merges(self) -> Iterator[tuple[RoundId, tuple[Part, ...]]]:
        """Yields merges as they become durable, until the target is reached and no round is in flight.

        Raises:
            Stalled: the run does not reach its target.
        """
        steps = self.scenario.rules.target_steps or 0
        longest = SLOWNESS * steps * max(self.scenario.paces)
        for learner in self.learners.values():
            self.loop.plan(0.0, learner, learner.start)
        yield from self.shard.until_end(longest)


def outcome(scenario: Scenario, seed: int) -> Outcome:
    """Runs the scenario to its end.

    Raises:
        Stalled: the run does not reach its target.
    """
    world = World(scenario, seed)
    members = [len(taken) for _, taken in world.merges()]
    accounts = world.accounts.values()
    trained = sum(account.trained for account in accounts)
    discarded = Counter[str]()
    for account in accounts:
        discarded.update(account.discarded)
    return Outcome(
        seconds=world.loop.now,
        goodput=world.goodput,
        merged_share=sum(account.merged for account in accounts) / trained,
        discarded={reason: tokens / trained for reason, tokens in sorted(discarded.items())},
        in_flight=sum(account.in_flight for account in accounts) / trained,
        mean_members=fmean(members),
    )

"""Learners of given speeds and a syncer in simulated time: the programs of the pods, without tensor values."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.start import Start
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.messages import Part
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.blank import (
    BlankArrays,
    BlankIsland,
    blank_layout,
    unit_contract,
    whole_body,
)
from atoll_runtime.simulate.eventloop import Process
from atoll_runtime.simulate.fleet.scenario import Scenario, drifts
from atoll_runtime.simulate.network import SimNetwork, Wire
from atoll_runtime.simulate.shard import Shard
from atoll_runtime.transport import codecs

SLOWNESS = 8
"""A run has stalled when it takes more than this many times the time of its steps, or of the transfers of its slowest
link, and in addition two round trips for each step and the finite outages of links."""
MOST_LOAD = 12
"""Beyond this many times the time of its steps, transfers do not prolong it further."""
TOKENS = 1000
"""Tokens of an inner step. A learner's batch does not depend on its speed."""
MOMENT = 1e-6
"""Seconds between two steps, so that messages caused by a step's report arrive before the next step begins."""
LONGEST_LOOK = 0.02
"""Longest pause in seconds between two checks for the syncer's welcome."""


class Learner(BlankIsland, Process):
    """A unit of one host, from the beginning of the run to its end."""

    tokens = TOKENS

    def __init__(self, name: str, shard: Shard, wire: Wire, steps: Iterator[float]) -> None:
        """`steps`: seconds of each step."""
        super().__init__(shard.loop)
        self.name, self.cursor = name, 0
        self.busy = self.idle = 0.0
        """Seconds in inner steps that have ended, and between two steps."""
        self._shard, self._wire, self._steps = shard, wire, steps

    async def train(self) -> None:
        """Trains step by step, as `learner/island.py` does."""
        loop = await self._connected()
        ended = self.loop.time()
        while (proposal := loop.propose()).ending is Ending.NONE:
            loop.begin(proposal)  # what its only host agrees to
            self.idle += self.loop.time() - ended
            seconds = next(self._steps)
            await asyncio.sleep(seconds - MOMENT)
            self.busy += seconds
            self.cursor += 1
            loop.finish(1.0, self.cursor)
            await asyncio.sleep(MOMENT)
            ended = self.loop.time()

    async def _connected(self) -> Loop:
        """Connects to the syncer with the initial model. Returns the training loop."""
        shard = self._shard
        while (service := shard.service) is None:
            await asyncio.sleep(MOMENT)
        contract = unit_contract(self.name, 1)
        link = SimNetwork(self, shard, self._wire)
        count = len(shard.layout.fragments)
        whole, padded = [(0, 1)] * count, [1] * count
        client = SyncerClient(shard.run, contract, shard.layout, whole, padded, [link], self.loop.time)
        self.client = client
        versions = tuple(each.version for each in shard.fragments)
        client.connect(versions, 0, "", [service.driver.journal.lineage])
        pause = MOMENT
        while not client.answered:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_LOOK)  # a link may have a delay of seconds
        me: Any = self
        start = Start(versions, versions)
        return Loop(shard.run, me, me, client, me, me, start, threading.Event(), me, clock=self.loop.time)

    # methods of `Fragments`

    def extract(self, theta: object, number: int, codec: str) -> Any:
        return whole_body(np.zeros(codecs.size(1, codec), np.uint8))

    def receive(self, theta: object, number: int, part: NDArray[Any]) -> None:
        """See `Fragments`."""


def cut_off(outages: Iterable[Iterable[tuple[float, float]]]) -> float:
    """Returns the seconds in which at least one link has a finite outage. `outages`: begin and end of each, by link."""
    seconds, until = 0.0, -math.inf
    for first, last in sorted(itertools.chain.from_iterable(outages)):
        if until < last < math.inf:
            seconds += last - max(first, until)
            until = last
    return seconds


class World:
    """One run of a scenario. Iterate over `merges` once; afterwards the other members hold the results."""

    def __init__(self, scenario: Scenario, seed: int = 0) -> None:
        self.scenario, run = scenario, scenario.run
        layout = blank_layout([[1] * run.outer.fragments])
        first = {name: np.zeros(shape, np.float32) for name, shape in layout.shapes.items()}
        rules = replace(Rules.of(run), guard=False)  # no unit lies or is broken, so nothing would be refused
        self.shard = Shard(run, rules, layout, first, BlankArrays(run.outer.codec), scenario.costs)
        self.loop = self.shard.loop
        self.loop.HOP = 0.0
        paces = drifts(scenario.paces, scenario.jitter, np.random.default_rng(seed))
        usual = Wire(scenario.costs.body, codec=run.outer.codec)
        self.learners = {
            (name := f"unit-{number:04}"): Learner(name, self.shard, unit.wire or usual, steps)
            for number, (unit, steps) in enumerate(zip(scenario.units, paces, strict=True))
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
        """Yields merges, see `Shard.until_end`. Raises `Stalled`: the run does not reach its target."""
        pace, outer = max(self.scenario.paces), self.scenario.outer  # a slow unit may be in the quorum
        wires = [unit.wire for unit in self.scenario.units if unit.wire]
        body = max((wire.body for wire in wires), default=0.0)
        load = body * outer.fragments / outer.interval / pace
        longest = SLOWNESS * self.scenario.steps * pace * min(max(load, 1.0), MOST_LOAD)
        longest += 4 * self.scenario.steps * max((wire.delay for wire in wires), default=0.0)
        longest += cut_off(wire.outages for wire in wires)
        for learner in self.learners.values():
            self.loop.plan(0.0, learner, learner.spawn, learner.train())
        yield from self.shard.until_end(longest)


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


def outcome(scenario: Scenario, seed: int) -> Outcome:
    """Runs the scenario to its end. Raises `Stalled`: it does not reach its target."""
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

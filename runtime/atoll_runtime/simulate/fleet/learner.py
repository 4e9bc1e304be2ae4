"""A unit of one host in simulated time: the training loop and client of the pods, without tensor values."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.start import Start
from atoll_runtime.simulate.blank import BlankIsland, unit_contract, whole_body
from atoll_runtime.simulate.fleet.scenario import Drift, Scenario, Unit
from atoll_runtime.simulate.link import Link, Wire
from atoll_runtime.simulate.network import Party
from atoll_runtime.simulate.shard import Shard
from atoll_runtime.transport import codecs

TOKENS = 1000
"""Tokens of an inner step. A learner's batch does not depend on its speed."""
MOMENT = 1e-6
"""Seconds between two steps, so that messages caused by a step's report arrive before the next step begins."""
LONGEST_LOOK = 0.02
"""Longest pause in seconds between two checks for the syncer's welcome."""


class Learner(BlankIsland, Party):
    """A learner from the beginning of the run to its end."""

    tokens = TOKENS

    def __init__(self, scenario: Scenario, unit: Unit, shard: Shard, drift: Drift) -> None:
        super().__init__(shard.loop)
        self.cursor = 0
        self.busy = self.idle = 0.0
        """Seconds in inner steps that have ended, and between two steps."""
        self._scenario, self._unit, self._shard, self._drift = scenario, unit, shard, drift

    def start(self) -> None:
        """Starts to train."""
        self.spawn(self._train())

    async def _train(self) -> None:
        """Trains step by step, as `learner/island.py` does."""
        loop = await self._connected()
        ended = self.loop.time()
        while (proposal := loop.propose()).ending is Ending.NONE:
            loop.begin(replace(proposal, arrivals=dict(proposal.arrivals)))  # what its only host agrees to
            self.idle += self.loop.time() - ended
            seconds = self._drift.next()
            await asyncio.sleep(seconds - MOMENT)
            self.busy += seconds
            self.cursor += 1
            loop.finish(1.0, self.cursor)
            await asyncio.sleep(MOMENT)
            ended = self.loop.time()

    async def _connected(self) -> Loop:
        """Connects to the syncer with the initial model. Returns the training loop."""
        shard, unit, costs = self._shard, self._unit, self._scenario.costs
        while (service := shard.service) is None:
            await asyncio.sleep(MOMENT)
        contract = unit_contract(unit.name, 1)
        link = Link(self, shard, unit.wire or Wire(costs.push, costs.fetch))
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

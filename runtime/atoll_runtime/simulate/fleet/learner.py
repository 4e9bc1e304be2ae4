"""A unit of one host in simulated time: the training loop and the client that run in the pods, without numbers."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending, Proposal
from atoll_runtime.learner.start import Start
from atoll_runtime.simulate.blank import BlankIsland, unit_contract, whole_body
from atoll_runtime.simulate.fleet.scenario import Scenario, Unit
from atoll_runtime.simulate.fleet.speeds import Drift
from atoll_runtime.simulate.link import Link, Wire
from atoll_runtime.simulate.network import Party
from atoll_runtime.simulate.shard import Shard
from atoll_runtime.transport import codecs

TOKENS = 1000
"""Of an inner step: a learner's batch does not depend on its speed."""
MOMENT = 1e-6
"""Seconds between two steps: messages that follow from a step's report arrive before the next step begins."""
LOOK_SECONDS = 0.02
"""Between two looks of a control that waits for a merge."""
FIRST_STEPS = 3
"""Inner steps until the syncer knows a learner's pace: the first is not reported, two reports make a pace."""


@dataclass
class Hours:
    """A unit's time, in seconds."""

    busy: float = 0.0
    """In inner steps that have ended."""
    idle: float = 0.0


class Learner(BlankIsland, Party):
    """From the beginning of the run to its end."""

    tokens = TOKENS

    def __init__(self, scenario: Scenario, unit: Unit, shard: Shard, drift: Drift) -> None:
        super().__init__(shard.loop)
        self.hours, self.cursor = Hours(), 0
        self._scenario, self._unit, self._shard, self._drift = scenario, unit, shard, drift

    def start(self) -> None:
        """Trains from now on."""
        self.spawn(self._train())

    async def _train(self) -> None:
        """As `learner/island.py`, a step at a time."""
        loop = await self._connected()
        control = Control(loop, self._scenario) if self._scenario.waits else None
        while (proposal := loop.propose()).ending is Ending.NONE:
            proposal = replace(proposal, arrivals=dict(proposal.arrivals))  # what its only host agrees to
            if control is not None:
                proposal = control.answered(proposal)
                if control.ahead and not (proposal.pulls or proposal.arrivals):
                    await self._wait()
                    continue
            loop.begin(proposal)
            if control is not None and control.ahead:
                continue  # it has answered and taken what came, and begun no step
            seconds = self._drift.next()
            await asyncio.sleep(seconds - MOMENT)
            self.hours.busy += seconds
            self.cursor += 1
            loop.finish(1.0, self.cursor)
            await asyncio.sleep(MOMENT)

    async def _wait(self) -> None:
        await asyncio.sleep(LOOK_SECONDS)
        self.hours.idle += LOOK_SECONDS

    async def _connected(self) -> Loop:
        """Welcomed by the syncer, with the initial model."""
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
            pause = min(2 * pause, LOOK_SECONDS)  # a link may have a delay of seconds
        # A control's waits do not count as its steps' time.
        clock = (lambda: self.hours.busy) if self._scenario.waits else self.loop.time
        me: Any = self
        start = Start(versions, versions)
        return Loop(shard.run, me, me, client, me, me, start, threading.Event(), me, clock=clock)

    # as `Fragments`

    def extract(self, theta: object, number: int, codec: str) -> Any:
        """See `Fragments`."""
        return whole_body(np.zeros(codecs.size(1, codec), np.uint8))

    def receive(self, theta: object, number: int, part: NDArray[Any]) -> None:
        """See `Fragments`."""


class Control:
    """A synchronous learner, which is not ours: it answers the round of step t after its own step t, and makes no
    step that is more than τ rounds ahead of the newest merge it has taken."""

    def __init__(self, loop: Loop, scenario: Scenario) -> None:
        rules = scenario.rules
        self._loop, self._lead = loop, rules.overlap * -(-rules.interval // rules.fragments)
        self._base: int | None = None
        """Global step at which its own step 0 lies, known from the first round it is asked for."""
        self._first = 0
        """The merge before that round."""

    @property
    def ahead(self) -> bool:
        """It must wait for a merge."""
        if self._base is None:
            return self._loop.step >= FIRST_STEPS
        newest = max(self._first, *self._loop.progress.versions)
        return self._loop.step + self._base >= newest + self._lead

    def answered(self, proposal: Proposal) -> Proposal:
        """Without the rounds whose step it has not made."""
        asked = [ask.round.step for ask in proposal.pulls.values()]
        if self._base is None and asked:
            self._base, self._first = min(asked) - self._loop.step, min(asked) - 1
        clock = self._loop.step + (self._base or 0)
        return replace(
            proposal, pulls={p: ask for p, ask in proposal.pulls.items() if ask.round.step <= clock}
        )

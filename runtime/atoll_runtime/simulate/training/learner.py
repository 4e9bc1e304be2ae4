"""One incarnation of a learner in simulated time, with the training loop and client that run in the pods."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from numpy.random import Generator

from atoll_runtime.checkpoint import Cut
from atoll_runtime.checkpoint.units import Moments
from atoll_runtime.learner.audit import Audit
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.snapshot import Snapshot, Snapshots
from atoll_runtime.learner.start import start_of
from atoll_runtime.simulate.blank import unit_contract
from atoll_runtime.simulate.eventloop import Process
from atoll_runtime.simulate.network import SimNetwork, Wire
from atoll_runtime.simulate.shard import Shard
from atoll_runtime.simulate.training.programs import Programs, Share
from atoll_runtime.simulate.training.setting import Setting

LOOK_SECONDS = 0.01
"""Between two checks for the first cut, and for the syncer's answer."""
TURN_SECONDS = 0.001
"""Between two steps, so that messages caused by a step's report arrive before the next step begins."""


@dataclass
class Island:
    """A learner over all its incarnations."""

    number: int
    steps: Iterator[float]
    """Seconds of each step."""
    chance: Generator
    """Of its losses."""
    client: Callable[..., SyncerClient] = SyncerClient
    programs: Programs | None = None
    """Its own programs, if it computes with others than the rest of the training."""
    moments: Moments | None = None
    """Moments of its last save, with which its next incarnation begins."""
    incarnations: int = 0
    tokens: int = 0
    """Tokens of the steps that have ended."""

    @property
    def name(self) -> str:
        return f"u{self.number}"


class Learner(Process):
    """One incarnation, from its seeding until it is lost or the run ends."""

    def __init__(self, setting: Setting, programs: Programs, shard: Shard, island: Island) -> None:
        super().__init__(shard.loop)
        island.incarnations += 1
        self._setting, self._shard, self._island = setting, shard, island
        self._programs = island.programs or programs
        self._incarnation = island.incarnations
        self.spawn(self._train())

    async def _train(self) -> None:
        """Seeds, connects and trains to the end, as `learner/island.py` does."""
        while (cut := self._shard.bucket.cut) is None or self._shard.service is None:
            await asyncio.sleep(LOOK_SECONDS)
        loop = await self._connected(cut)
        while (agreed := loop.agreed()).ending is Ending.NONE:
            loss, cursor = loop.begin(agreed)
            await asyncio.sleep(next(self._island.steps))
            loop.finish(float(loss), cursor)
            self._island.tokens += loop.inner.tokens
            await asyncio.sleep(TURN_SECONDS)

    async def _connected(self, cut: Cut) -> Loop:
        """Seeds the learner from the newest cut and connects it to the syncer. Returns its training loop."""
        programs, island, learners = self._programs, self._island, self._setting.learners
        run, layout, moments = programs.run, programs.layout, island.moments
        inner = programs.inner.twin(cut.theta, moments, island.number)
        fragments = Fragments(programs.mesh, layout, inner.theta)
        contract = unit_contract(
            island.name, self._incarnation, batch=inner.batch, stream=island.number, streams=learners
        )
        clock = self.loop.time
        link = SimNetwork(self, self._shard, Wire(self._setting.costs.body, codec=run.outer.codec))
        client = island.client(run, contract, layout, fragments.bounds, fragments.padded, [link], clock)
        client.connect(cut.versions, cut.step, "", cut.meta["lineages"])
        while not client.answered:
            await asyncio.sleep(LOOK_SECONDS)
        start = start_of(client.welcome(0.0), programs.agreement, cut, run.uid, island.name, moments is None)
        audit = None
        if programs.audit is not None and run.audit is not None:
            audit = Audit(run, layout, inner, programs.audit, start.targets)
        return Loop(
            run,
            inner,
            fragments,
            client,
            programs.agreement,
            Share(programs.train, run.data.seed, island.number, learners, inner.batch, start.cursor),
            start,
            threading.Event(),
            Snapshots(fragments.bounds, start.targets, self._save),
            audit=audit,
            clock=clock,
        )

    def _save(self, snapshot: Snapshot) -> None:
        """Stands for the unit's save of a cut to the bucket."""
        layout, moments = self._programs.layout, Moments({}, {}, snapshot.count)
        for capture in snapshot.captures:
            number = capture.head.number
            size = layout.fragments[number].size
            layout.unflatten(number, capture.mu[:size], moments.mu)
            layout.unflatten(number, capture.nu[:size], moments.nu)
        self._island.moments = moments

"""A learner unit in simulated time: the real training loop and client with symbolic arrays."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from sim_bucket import WholeCut
from sim_network import SimNetwork
from sim_scenario import Island
from sim_values import Delta, Value, Violation

from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.start import start_of
from atoll_runtime.protocol.fragments import part_bounds
from atoll_runtime.protocol.progress import Contribution, Progress
from atoll_runtime.simulate.blank import BlankIsland, unit_contract, whole_body
from atoll_runtime.simulate.eventloop import Process

if TYPE_CHECKING:
    from sim_world import World

SEED_SECONDS = 0.5
WELCOME_SECONDS = 5.0
LOOK_SECONDS = 0.1
SEQUENCES = 3
"""By which a step moves a unit's place in the data."""
DEVICES = 2
"""Devices of each host."""


@dataclass(eq=False)
class UnitSlot:
    """A unit with all its incarnations."""

    world: World
    island: Island
    incarnation: int = 0
    processes: list[UnitProcess] = field(default_factory=list)
    """Live processes. The last one is of the newest incarnation, unless that is dead."""
    stopped: bool = False
    """Whether an incarnation has left because the run was finished."""
    cut_off_until: float = 0.0
    hung_until: float = 0.0

    @property
    def name(self) -> str:
        return self.island.name

    @property
    def running(self) -> bool:
        return any(process.incarnation == self.incarnation for process in self.processes)

    def start(self) -> None:
        """Start the next incarnation. An older one that still runs goes on until it is fenced."""
        self.incarnation += 1
        process = UnitProcess(self)
        self.processes.append(process)
        process.spawn(process.main())

    def kill(self) -> None:
        for process in list(self.processes):
            process.end()


class UnitProcess(Process):
    """One incarnation with all its hosts, which step together."""

    def __init__(self, slot: UnitSlot) -> None:
        self.slot, self.world, self.island = slot, slot.world, slot.island
        super().__init__(slot.world.loop)
        self.incarnation = slot.incarnation
        self.hosts: list[Host] = []
        self.begun, self.began = False, 0.0
        """Whether it trains, and since when."""
        self.steps = 0

    def __str__(self) -> str:
        return f"{self.slot.name}.{self.incarnation}"

    @property
    def who(self) -> tuple[str, int]:
        return self.slot.name, self.incarnation

    @property
    def progress(self) -> Progress:
        return self.hosts[0].loop.progress

    @property
    def trained(self) -> int:
        """Tokens of this incarnation by its own count."""
        return self.progress.trained if self.begun else 0

    def end(self) -> None:
        """End the incarnation. Its sessions break, but what it sent may still arrive."""
        self.world.log(f"{self} ends")
        self.slot.processes.remove(self)
        self.kill()

    async def main(self) -> None:
        """Seed, connect, and train to the end, as `learner/island.py` does."""
        world = self.world
        while (cut := world.bucket.newest()) is None or world.bucket.fails(world.weather.bucket):
            await asyncio.sleep(SEED_SECONDS)
        await asyncio.sleep(world.delay())
        for value in cut.values:
            world.checks.seen(value)
        self.hosts = [Host(self, number, cut) for number in range(self.island.hosts)]
        first = self.hosts[0].client
        until = world.now + WELCOME_SECONDS
        while not first.answered and world.now < until:
            await asyncio.sleep(LOOK_SECONDS)
        agreement: Any = SimpleNamespace(found_by_first=lambda work, kind: work())
        known, uid, again = cut.loaded({}), world.run_contract.uid, self.incarnation > 1
        start = start_of(first.welcome(0.0), agreement, known, uid, self.slot.name, again)
        for host in self.hosts:
            host.train(start)
        self.begun, self.began = True, world.now
        world.checks.begun(self)
        while (ending := self._begin()) is Ending.NONE:
            await asyncio.sleep(self.island.pace)
            await self._hang()
            for host in self.hosts:
                host.loop.finish(1.0, host.cursor)
            self.steps += 1
        self.slot.stopped = self.slot.stopped or ending is Ending.STOPPED
        self.end()

    async def _hang(self) -> None:
        """Prolong the step in which the unit hangs. Its client serves its sessions meanwhile."""
        while (seconds := self.slot.hung_until - self.world.now) > 0:
            await asyncio.sleep(seconds)

    def _begin(self) -> Ending:
        """Do what all hosts can do now, and begin the next step."""
        proposals = [host.loop.propose() for host in self.hosts]
        values = np.array([each.values(len(self.world.layout.fragments)) for each in proposals])
        low, high = values.min(axis=0), values.max(axis=0)
        for host, proposal in zip(self.hosts, proposals, strict=True):
            agreed = proposal.agreed(low, high)
            if agreed.ending is not Ending.NONE:
                return agreed.ending
            if host.number == 0 and agreed.cut > self.progress.cut:
                self.world.log(f"{self} records itself for {agreed.cut} at {self.trained}")
                self.world.checks.marked(self, agreed.cut)
            _, host.cursor = host.loop.begin(agreed)
        return Ending.NONE


class Host(BlankIsland):
    """One host of an incarnation. It replaces what the training loop needs of JAX."""

    def __init__(self, unit: UnitProcess, number: int, cut: WholeCut) -> None:
        world = unit.world
        self.unit, self.number, self.cursor = unit, number, 0
        self.anchors = list(cut.values)
        """The value that it holds of each fragment. For a while two hosts may hold values of different lineages."""
        self.starts = [0] * len(self.anchors)
        """Tokens trained when the unit received each anchor, or when it took a contribution that is in the anchor."""
        self.sent: dict[int, int] = {}
        """Tokens that the unit had trained when it took its newest contribution, by fragment."""
        self.bounds, self.padded = [], []
        for fragment in world.layout.fragments:
            parts = part_bounds(fragment.size, DEVICES * unit.island.hosts, block=1)
            mine = parts[DEVICES * number : DEVICES * (number + 1)]
            self.bounds.append((mine[0][0], mine[-1][1]))
            self.padded.append(parts[-1][1])
        contract = unit_contract(unit.slot.name, unit.incarnation, host=number, hosts=unit.island.hosts)
        factor = unit.island.uneven if number else 1.0
        island = replace(unit.island, link=factor * unit.island.link)
        line: dict[str, float] | None = {} if world.scenario.shared else None
        self.networks = [SimNetwork(unit, slot, island, line) for slot in world.shards]
        run, layout, clock = world.run_contract, world.layout, world.loop.time
        self.client = SyncerClient(run, contract, layout, self.bounds, self.padded, self.networks, clock)
        versions = [value.version for value in self.anchors]
        self.client.connect(versions, cut.step, "", cut.lineages)
        if unit.island.lie == "tokens":
            self._contribute, self.client.contribute = self.client.contribute, self._overstate  # type: ignore[method-assign]

    def train(self, start: Any) -> None:
        """Make the training loop. This object is its inner step, fragments, data and snapshots."""
        me: Any = self
        self.cursor = start.cursor
        run, world = self.unit.world.run_contract, self.unit.world
        self.loop = Loop(
            run, me, me, self.client, me, me, start, threading.Event(), me, clock=world.loop.time
        )

    @property
    def tokens(self) -> int:
        return self.unit.island.tokens

    def _overstate(
        self, number: int, ask: Any, codec: str, body: memoryview, offer: Contribution, step: int, cursor: int
    ) -> None:
        """Send a contribution that claims a thousand times its tokens."""
        many = 1000 * offer.tokens
        told = replace(offer, tokens=many, trained=offer.trained + many)
        self._contribute(number, ask, codec, body, told, step, cursor)

    # as `Batches`

    def take(self, timeout: float) -> Any:
        return SimpleNamespace(tokens=None, cursor=self.cursor + SEQUENCES)

    # as `Fragments`

    def extract(self, theta: object, number: int, codec: str) -> Any:
        self.sent[number] = self.unit.trained
        delta = Delta(self.unit.who, self.anchors[number], self.starts[number], self.unit.trained)
        start, stop = self.bounds[number]
        size = self.unit.world.layout.fragments[number].size
        return whole_body(
            self.unit.world.registry.body(delta, max(min(stop, size) - start, 0), stop - start, codec)
        )

    def receive(self, theta: object, number: int, part: np.ndarray) -> None:
        value = self.unit.world.registry.content(part)
        if not isinstance(value, Value):
            raise Violation(f"{self.unit} received {value}")
        if self.number == 0:
            self.unit.world.log(f"{self.unit} receives {value}")
            self.unit.world.checks.adopted(self.unit, number, self.anchors[number], value)
        self.anchors[number], self.starts[number] = value, self.sent.pop(number, self.unit.trained)

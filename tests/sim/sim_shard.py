"""A shard of the syncer in simulated time: the real driver, service and journal, in a process that can be killed."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from sim_bucket import SimStore
from sim_disk import Mount, SimDisk
from sim_network import SimNetwork
from sim_values import Pending, SymbolicArrays, Value, Violation

from atoll_runtime.checkpoint import StoreError
from atoll_runtime.protocol.effects import Effect, Tell
from atoll_runtime.protocol.events import Event
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Orders, Standing
from atoll_runtime.protocol.rules import COORDINATOR, Rules
from atoll_runtime.simulate.eventloop import Process
from atoll_runtime.simulate.network import Server
from atoll_runtime.syncer import recovery
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.following import Following
from atoll_runtime.syncer.records import JournalError, State, fragment_file, newest, read
from atoll_runtime.syncer.recovery import Start
from atoll_runtime.syncer.service import Service
from atoll_runtime.syncer.status import Status, figures
from atoll_runtime.syncer.tape import Tape

if TYPE_CHECKING:
    from sim_world import World

FOLDER = Path("layout-1/journal")
"""On the shard's volume; the operator names the folder above it."""
FIGURES_SECONDS = 10.0
"""Seconds between two times that a shard tells its figures. They are rare, because they decide nothing."""


@dataclass(eq=False)
class ShardSlot:
    """A shard with all its processes."""

    world: World
    rules: Rules
    disk: SimDisk
    process: ShardProcess | None = None
    cut_off_until: float = 0.0
    parted_until: float = 0.0

    @property
    def number(self) -> int:
        return self.rules.shard

    @property
    def processes(self) -> list[ShardProcess]:
        return [self.process] if self.process is not None else []

    def start(self) -> None:
        """Start a new process, unless one runs."""
        if self.process is None:
            self.process = ShardProcess(self)
            self.process.spawn(self.process.main())

    def crash(self, power: bool = False) -> None:
        """kill -9. With `power` the whole machine goes down, and what was not synced may be lost."""
        process, self.process = self.process, None
        if process is not None:
            self.world.log(f"shard {self.number} crashes")
            process.kill()
        if power:
            self.disk.lose_power()

    def restore_volume(self, snapshot: dict[Path, bytes]) -> None:
        """Restore the volume from a snapshot. Later merges are lost in the same lineage."""
        self.crash()
        self.disk.restore(snapshot)
        self.world.checks.went_back(self)

    @property
    def record(self) -> Mapping[str, Any]:
        """The machine's record in the journal."""
        record: Mapping[str, Any] = self._newest(self._mount()).machine["machine"]
        return record

    def written(self) -> Iterator[Value]:
        """Read the values of fragments with elements from the journal."""
        mount = self._mount()
        for p, (_, place) in enumerate(self._newest(mount).newest):
            _, body = next(read(mount, fragment_file(FOLDER, p, place)))
            if body:
                yield self.world.registry.content(body)

    def _mount(self) -> Mount:
        return Mount(self.disk, Process(self.world.loop), lambda _: None)

    def _newest(self, mount: Mount) -> State:
        state = newest(mount, FOLDER)
        assert state is not None
        return state


class ShardProcess(Server):
    """One process of a shard, from its start to its crash."""

    def __init__(self, slot: ShardSlot) -> None:
        self.slot, self.world, self.number = slot, slot.world, slot.number
        super().__init__(slot.world.loop)
        self.layout = slot.world.layout.shard(slot.number)
        self.driver: SimDriver | None = None
        self.lineage = ""
        self.memory: list[Value] = []
        """The newest version of each fragment, durable or not."""

    def __str__(self) -> str:
        return f"shard {self.number}"

    @property
    def machine(self) -> Syncer:
        assert self.driver is not None
        return self.driver.machine

    @property
    def state(self) -> list[Value]:
        """The versions that are served."""
        assert self.driver is not None
        return [self._value(p, each.theta) for p, each in enumerate(self.driver.state.fragments)]

    async def main(self) -> None:
        """Recover, then serve until a failure, as `syncer/__main__.py` does."""
        world, slot = self.world, self.slot
        store, arrays, tape = SimStore(self), SymbolicArrays(self), SimTape(self)
        mount, backoff = Mount(slot.disk, self, world.moment), Backoff(0.5, 30.0)
        while True:
            try:
                recovered = await asyncio.get_running_loop().run_in_executor(
                    None, self._recover, store, mount
                )
                break
            except StoreError:
                await backoff.wait()
            except JournalError as error:
                self._fail(error)
                return
        budget, clock = world.scenario.budget, world.loop.time
        self.driver = SimDriver(
            world.run_contract, world.layout, recovered, store, tape, budget, arrays, clock
        )
        self.driver.process = self
        self.lineage = recovered.journal.lineage
        self.memory = self.state
        for value in self.memory:
            value.lineage = value.lineage or self.lineage
        world.checks.started(self)
        world.log(f"{self} starts: step {self.machine.step}, versions {self.machine.versions}")
        self.service = Service(self.driver)
        self.status = Status(world.run_contract, self.number, service=self.service)
        self.driver.start()
        if self.number != COORDINATOR:
            network: Any = SimNetwork(self, world.shards[COORDINATOR])
            told = functools.partial(figures, self.service)
            self.driver.spawn(Following(self.driver, network, told, FIGURES_SECONDS).serve())
        try:
            await self.driver.failed
        except Exception as error:
            self._fail(error)

    def arrays_of(self, values: Sequence[Value]) -> dict[str, np.ndarray]:
        """Tensors that begin another lineage with these values."""
        return {
            fragment.pieces[0].tensor: self.world.registry.array(value.copy(), fragment.size)
            for fragment, value in zip(self.layout.fragments, values, strict=True)
            if fragment.size
        }

    def _recover(self, store: SimStore, mount: Mount) -> Start:
        """Recover with names of lineages that depend only on the seed."""
        world = self.world

        def initial() -> dict[str, np.ndarray]:
            return self.arrays_of([world.initial(self.number, p) for p in range(len(self.layout.fragments))])

        names = SimpleNamespace(uuid4=lambda: SimpleNamespace(hex=f"L{world.rng.getrandbits(32):08x}"))
        with mock.patch.object(recovery, "uuid", names):
            start = recovery.recover(
                world.run_contract,
                self.slot.rules,
                world.layout,
                FOLDER,
                store,
                initial,
                mount,
                world.loop.time,
            )
        start.machine.cuts.started = int(1000 * world.now)  # shards start more often than once in a second
        return start

    def _value(self, p: int, theta: np.ndarray) -> Value:
        found = self.world.registry.content(theta)
        if found is None:
            return self.world.empty(self.number, p)
        if not isinstance(found, Value) or (found.shard, found.fragment) != (self.number, p):
            raise Violation(f"{self}: fragment {p} is {found}")
        return found

    def _fail(self, error: Exception) -> None:
        """End the process. A volume that failed may work again for the next process."""
        if not isinstance(error, JournalError) or not self.world.disk_faults:
            self.world.loop.failures.append(error)
        self.world.log(f"{self} fails: {error}")
        self.world.crash(self.slot)


class SimDriver(Driver):
    """Checks that shard 0 announces its decisions in the order in which it made them."""

    process: ShardProcess

    def __init__(self, *facts: Any) -> None:
        super().__init__(*facts)
        self.decided: deque[Orders] = deque()
        """What is not announced yet."""

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Tell) and isinstance(effect.news, Orders):
            self.decided.append(effect.news)
        super()._carry_out(effect)

    def _tell(self, news: Orders | Standing) -> None:
        if isinstance(news, Orders) and self.decided.popleft() is not news:
            raise Violation(f"{self.process}: {news} is announced before an earlier decision")
        super()._tell(news)


@dataclass
class SimTape(Tape):
    """Receives what the driver writes to its tape: each event and effect of the machine, before it is carried out."""

    process: ShardProcess

    def begin(self, *shard: Any) -> None:
        pass

    def event(self, event: Event, now: float, effects: Sequence[Effect]) -> None:
        process = self.process
        if process.alive:
            if process.world.tracing:
                process.world.log(f"{process} < {event}")
                for effect in effects:
                    process.world.log(f"{process} > {effect}")
            process.world.checks.handled(process, event, effects)

    def contributions(self, merge: Any, parts: Any) -> None:
        pass

    def merged(self, round_id: RoundId, theta: np.ndarray, momentum: np.ndarray) -> None:
        """Make the merge a version, with the incarnations of its members that the machine knows now."""
        process, registry = self.process, self.process.world.registry
        pending = registry.content(theta)
        if not isinstance(pending, Pending):
            raise Violation(f"{round_id}: {pending} was merged")
        current = {name: unit.incarnation for name, unit in process.machine.units.items()}
        value = pending.old.merge(pending.step, pending.deltas, current)
        value.lineage = process.lineage
        registry.settle(pending, value)
        process.memory[round_id.fragment] = value

    def close(self) -> None:
        pass

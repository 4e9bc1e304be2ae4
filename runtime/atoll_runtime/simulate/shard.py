"""The syncer's only shard in simulated time, with the driver, service and journal that run in the pods."""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll_runtime.contract import RunContract
from atoll_runtime.interfaces import Arrays
from atoll_runtime.protocol.effects import Effect, Merge
from atoll_runtime.protocol.events import Event, Persisted
from atoll_runtime.protocol.fragments import Array, Layout
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Part
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.eventloop import SimLoop
from atoll_runtime.simulate.network import Server
from atoll_runtime.simulate.storage import MemoryBucket, ScratchDisk
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.recovery import recover
from atoll_runtime.syncer.service import Service
from atoll_runtime.syncer.state import Version
from atoll_runtime.syncer.tape import Tape

UNLIMITED = 1 << 62
"""Bytes of contributions, or seconds of silence."""


class Stalled(RuntimeError):
    """The run does not reach its target."""


@dataclass(frozen=True)
class Costs:
    """Seconds of all work other than inner steps. The defaults fit steps of about a second.

    Together they take 0.6 of a step. An overlap of τ = 2 steps hides them and leaves room for grace. Goodput does not
    depend on them as long as they are hidden.
    """

    body: float = 0.2
    """Of a contribution's or a version's transfer."""
    merge: float = 0.1
    write: float = 0.1

    def of(self, job: Callable[..., Any]) -> float:
        """Returns the seconds of a worker thread's job. Only merges and writes of merges take time."""
        function = getattr(job.func, "__func__", None) if isinstance(job, functools.partial) else None
        if function is Journal.merge:
            return self.write
        return self.merge if getattr(function, "__name__", "") == "merge" else 0.0


COSTS = Costs()


class Shard(Server):
    """A shard that is never killed. All parties share its event loop."""

    def __init__(
        self,
        run: RunContract,
        rules: Rules,
        layout: Layout,
        first: Mapping[str, Array],
        arrays: Arrays,
        costs: Costs,
    ) -> None:
        """`first`: θ of step 0, by tensor."""
        # The loop lacks the methods that no program of the pods calls.
        super().__init__(SimLoop(costs.of))  # type: ignore[abstract]
        self.bucket, self.tape = MemoryBucket(), Merges()
        self.run, self.layout, self._arrays = run, layout, arrays
        self._recovered = recover(
            run, rules, layout, Path("/journal"), self.bucket, lambda: first, ScratchDisk()
        )
        self.machine: Syncer = self._recovered.machine

    def until_end(self, longest: float) -> Iterator[tuple[RoundId, tuple[Part, ...]]]:
        """Serves until the target is reached and no round is in flight. Yields each durable merge and its members.
        Raises `Stalled`: it takes more than `longest` seconds."""
        self.spawn(self._serve())
        loop, durable, machine = self.loop, self.tape.durable, self.machine

        def working() -> bool:
            return bool(machine.rounds.in_flight) or not machine.finishing

        try:
            while working():
                left = loop.run_while(lambda: loop.now <= longest and not durable and working())
                if loop.now > longest or not left:
                    step, target = machine.step, machine.rules.target_steps
                    raise Stalled(f"at {loop.now:.0f} s the clock stands at {step} of {target} steps")
                while durable:
                    yield durable.popleft()
        finally:
            loop.close()
            self._arrays.close()

    @property
    def fragments(self) -> Sequence[Version]:
        """The newest durable version of each fragment."""
        return self._recovered.state.fragments

    async def _serve(self) -> None:
        clock = asyncio.get_running_loop().time
        driver = Driver(
            self.run, self.layout, self._recovered, self.bucket, self.tape, UNLIMITED, self._arrays, clock
        )
        self.service = Service(driver)
        driver.start()
        await driver.failed


class Merges(Tape):
    """Writes nothing."""

    def __init__(self) -> None:
        super().__init__(Path("/tape"), "Decisions")
        self._frozen: dict[RoundId, tuple[Part, ...]] = {}
        self.durable: deque[tuple[RoundId, tuple[Part, ...]]] = deque()
        """Durable merges and their members, until they are taken."""

    def begin(self, *shard: object) -> None:
        """See `Tape`."""

    def event(self, event: Event, now: float, effects: Sequence[Effect]) -> None:
        if isinstance(event, Persisted):
            self.durable.append((event.round, self._frozen.pop(event.round)))

    def contributions(self, merge: Merge, parts: object) -> None:
        self._frozen[merge.round] = merge.members

    def merged(self, round_id: RoundId, theta: object, momentum: object) -> None:
        """See `Tape`."""

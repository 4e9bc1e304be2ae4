"""One host's exchange with the syncer, all shards of it. Every method returns at once but those with a time-out.

The clients of the shards run on an event loop in a thread of its own, or on the caller's, as in simulated time.

The island knows one list of fragments: fragment p of shard s is number s·P + p.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.interfaces import Network
from atoll_runtime.learner.mailbox import Arrival, Counters, Mailbox
from atoll_runtime.learner.wire import Wire
from atoll_runtime.sync.events import CutId
from atoll_runtime.sync.fragments import Layout
from atoll_runtime.sync.link import Ask
from atoll_runtime.sync.progress import Offer
from atoll_runtime.sync.rules import COORDINATOR
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import (
    Beginning,
    Fenced,
    PushHead,
    Refused,
    Stop,
)
from atoll_runtime.transport.threads import Threads
from atoll_runtime.transport.transport import Transport

__all__ = ["Arrival", "Exchange", "Greeting"]


@dataclass(frozen=True)
class Greeting:
    """What the shards told this host at first."""

    global_step: int
    inner_step: int
    cursor: int
    versions: tuple[int, ...]
    """Of every fragment; of a shard that did not answer, what this host held."""
    merged: int = 0
    """Tokens, as shard 0 counts them; 0 where that has not answered."""


class Exchange:
    """Used by the training loop's thread alone.

    Args:
        layout: of the whole model, in as many shards as there are transports.
        bounds: this host's [start, stop) in each padded fragment.
        padded: elements of each fragment, padded to the unit's devices.
        transports: one for each shard; needed by `start` alone.
        clock: seconds, by which links are measured.
    """

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        layout: Layout,
        bounds: Sequence[tuple[int, int]],
        padded: Sequence[int],
        transports: Sequence[Transport] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._run, self._unit, self._layout = run, unit, layout
        self._bounds, self._padded, self._transports = tuple(bounds), tuple(padded), tuple(transports)
        self._dtype = codecs.DTYPES[run.outer.codec]
        self._held: tuple[int, ...] = (0,) * len(layout.fragments)
        self._boxes: list[Mailbox] = []
        self._wires: list[Wire] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inner_step = 0

    @property
    def counters(self) -> Counters:
        """What happened on the links, all together."""
        total = Counters()
        for box in self._boxes:
            for name, value in vars(box.counters).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    def start(
        self, versions: Sequence[int], seeded_step: int, seed_message: str, lineages: Sequence[str] = ()
    ) -> None:
        """Says what this host holds; connects to every shard in the background.

        Args:
            lineages: that the versions belong to, by shard; empty where that is not known.
        """
        loop = self._loop = asyncio.new_event_loop()

        def serve() -> None:
            loop.run_forever()
            loop.close()

        threading.Thread(target=serve, name="syncer-clients", daemon=True).start()

        async def connect() -> None:
            networks = [Threads(transport) for transport in self._transports]
            self.connect(networks, versions, seeded_step, seed_message, lineages)

        asyncio.run_coroutine_threadsafe(connect(), loop).result()

    def connect(
        self,
        networks: Sequence[Network],
        versions: Sequence[int],
        seeded_step: int,
        seed_message: str,
        lineages: Sequence[str] = (),
    ) -> None:
        """The same over these networks, one for each shard, on the event loop of the caller."""
        if len(networks) != self._layout.shards:
            raise ValueError(f"transports: {len(networks)} for {self._layout.shards} shards")
        seed = seeded_step, seed_message
        for s, box in enumerate(self.open(versions, lineages)):
            fingerprint, bounds = self._layout.shard(s).fingerprint, self._bounds[self._own(s)]
            self._wires.append(Wire(self._run, self._unit, s, fingerprint, bounds, networks[s], box, seed))

    def open(self, versions: Sequence[int], lineages: Sequence[str] = ()) -> Sequence[Mailbox]:
        """Says what this host holds. Nothing carries what is in the mailboxes, one a shard, but the caller."""
        if len(versions) != len(self._layout.fragments):
            raise ValueError(f"versions: {len(versions)} for {len(self._layout.fragments)} fragments")
        sizes = [fragment.size for fragment in self._layout.fragments]
        # Of a fragment without elements there is nothing to hold.
        self._held = tuple(version if size else 0 for version, size in zip(versions, sizes, strict=True))
        self._boxes = [
            Mailbox(
                self._held[self._own(s)],
                lineages[s] if lineages else "",
                [p for p, size in enumerate(sizes[self._own(s)]) if not size],
                self._clock,
            )
            for s in range(self._layout.shards)
        ]
        return self._boxes

    def welcome(self, timeout: float) -> Greeting | None:
        """The first answers; waits at most `timeout` seconds for all shards, so only before training starts."""
        deadline = time.monotonic() + timeout
        for box in self._boxes:
            box.answered.wait(max(0.0, deadline - time.monotonic()))
        answers = [box.welcome for box in self._boxes]
        known = [answer for answer in answers if answer is not None]
        if not known:
            return None
        versions: list[int] = []
        for s, answer in enumerate(answers):
            versions += self._held[self._own(s)] if answer is None else answer.versions
        return Greeting(
            max(answer.global_step for answer in known),
            max(answer.inner_step for answer in known),
            max(answer.cursor for answer in known),
            tuple(versions),
            first.merged if (first := answers[COORDINATOR]) is not None else 0,
        )

    def begin(self, beginning: Beginning) -> None:
        """The first step has ended; told with the reports that follow."""
        self._boxes[COORDINATOR].beginning = beginning

    def report(self, step: int, tokens: int, loss: float, step_seconds: float, cursor: int) -> None:
        """Each inner step. `tokens`: of the whole unit in it; `cursor`: the next position in its data.

        Host 0 speaks for its unit, to shard 0.
        """
        self._inner_step = step
        if self._unit.host == 0:
            self._boxes[COORDINATOR].put_report(step, tokens, loss, step_seconds, cursor)

    def arrived(self) -> dict[int, Arrival]:
        """The newest complete version of each fragment, if it was not given out yet."""
        return {
            self._number(s, p): arrival
            for s, box in enumerate(self._boxes)
            for p, arrival in box.take_arrivals().items()
        }

    def adopt(self, number: int, arrival: Arrival) -> None:
        """The loop has taken an arrival: it is the anchor now."""
        s, p = divmod(number, self._layout.width)
        self._boxes[s].adopt(p, arrival)

    def pulls(self) -> dict[int, Ask]:
        """The open rounds that want a contribution, by fragment, once the version they need was taken."""
        return {
            self._number(s, p): ask for s, box in enumerate(self._boxes) for p, ask in box.pulls().items()
        }

    def contribute(self, number: int, ask: Ask, part: NDArray[Any], offer: Offer, cursor: int) -> None:
        """Queues this host's part of anchor − θ; dropped and counted when it comes late.

        Raises:
            ValueError: the part is not of the wire's dtype and this host's size.
        """
        start, stop = self._bounds[number]
        if part.shape != (stop - start,) or part.dtype != self._dtype:
            raise ValueError(f"part: {part.dtype}{list(part.shape)} must be {self._dtype}[{stop - start}]")
        head = PushHead(
            unit=self._unit.unit,
            incarnation=self._unit.incarnation,
            host=self._unit.host,
            hosts=self._unit.hosts,
            round=ask.round,
            anchor=offer.anchor,
            steps=offer.steps,
            tokens=offer.tokens,
            cursor=cursor,
            inner_step=self._inner_step,
            start=start,
            stop=stop,
            padded=self._padded[number],
            trained=offer.trained,
            codec=self._run.outer.codec,
            size=codecs.pushed_size(stop - start, self._run.outer.codec),
            cut=offer.cut,
        )
        self._boxes[number // self._layout.width].put_push(head, np.ascontiguousarray(part))

    def cut(self) -> CutId:
        """The newest cut that any shard has told of. Ask after `arrived`: it covers what came."""
        return max(box.cut for box in self._boxes)

    def mark(self, cut: CutId, trained: int) -> None:
        """The unit has recorded itself for a cut: tells shard 0."""
        self._boxes[COORDINATOR].put_mark(cut, trained)

    def merged(self) -> int:
        """Tokens merged, as shard 0 counts them, as far as this host has heard."""
        return self._boxes[COORDINATOR].merged

    def stop(self) -> Stop | None:
        """The final cut is safe: leave cleanly."""
        return self._boxes[COORDINATOR].stop

    def error(self) -> Fenced | Refused | None:
        """Terminal: a newer incarnation, a foreign layout, the wrong run."""
        return next((box.error for box in self._boxes if box.error is not None), None)

    def check(self) -> None:
        """Raises what ended a client."""
        for box in self._boxes:
            if box.failure is not None:
                raise box.failure

    def close(self, timeout: float) -> None:
        """Ends every link; waits at most `timeout` seconds."""
        loop, self._loop = self._loop, None
        if loop is not None:
            ended = asyncio.run_coroutine_threadsafe(self.disconnect(), loop)
            with contextlib.suppress(TimeoutError):
                ended.result(timeout)
            loop.call_soon_threadsafe(loop.stop)
        for transport in self._transports[len(self._wires) :]:
            transport.close()

    async def disconnect(self) -> None:
        """The same, on the event loop of the caller."""
        await asyncio.gather(*(wire.close() for wire in self._wires))

    @property
    def answered(self) -> bool:
        """Every shard has answered, or will not."""
        return all(box.answered.is_set() for box in self._boxes)

    def _own(self, s: int) -> slice:
        """A shard's fragments."""
        return slice(s * self._layout.width, (s + 1) * self._layout.width)

    def _number(self, s: int, p: int) -> int:
        return s * self._layout.width + p

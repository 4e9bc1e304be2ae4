"""One host's client of one shard of the syncer: a session, fetches and pushes, each a task on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from numpy.typing import NDArray

from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.interfaces import Network
from atoll_runtime.learner.holdings import Holdings
from atoll_runtime.learner.mailbox import Arrival, Mailbox
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PROTOCOL, FetchRequest, Hello, PushHead, Report, Up, Welcome
from atoll_runtime.transport.transport import TransportError

log = logging.getLogger(__name__)

PUSH_ATTEMPTS = 6
REPORT_SECONDS = 0.1
"""Least time between two reports on the wire; those in between are coalesced."""
BACKOFF_SECONDS = (0.2, 5.0)
"""First and longest wait between two attempts."""


class Wire:
    """Connects for ever, with back-off and jitter, until it is closed or told to stop. Make it on the event loop."""

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        shard: int,
        fingerprint: str,
        bounds: Sequence[tuple[int, int]],
        network: Network,
        box: Mailbox,
        seed: tuple[int, str],
    ) -> None:
        """`bounds`: this host's [start, stop) in each padded fragment of the shard; `seed`: step and message."""
        self._run, self._unit, self._shard = run, unit, shard
        self._fingerprint, self._bounds = fingerprint, tuple(bounds)
        self._network, self._box, self._seed = network, box, seed
        self._codec = run.outer.codec
        self._loop = asyncio.get_running_loop()
        self._say, self._fetch, self._push, self._change = (asyncio.Event() for _ in range(4))
        self._told = False
        """The loop will look at the mailbox."""
        self._quiet_until = 0.0
        box.changed = self._changed
        self._tasks = [
            self._loop.create_task(self._work(job))
            for job in (self._keep_linked, self._fetch_all, self._push_all)
        ]

    async def close(self) -> None:
        """Ends session and transfers."""
        self._box.close()
        self._network.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._box.changed = lambda: None

    def _changed(self) -> None:
        """The mailbox has changed, in any thread."""
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._told = False
        say, fetch, push = self._box.waiting
        ended = self._box.ended
        for event, due in ((self._say, say), (self._fetch, fetch), (self._push, push), (self._change, True)):
            if due or ended:
                event.set()

    async def _work(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A task. What it does not mend itself (no memory, no further thread) ends the process by way of the training
        loop: without this task the unit would train on, alone, and say nothing."""
        try:
            await job()
        except Exception as error:
            if not self._box.ended:
                log.exception("the link to shard %d of the syncer failed", self._shard)
                self._box.fail(error)

    async def _pause(self, attempt: int, until: Callable[[], bool] = lambda: False) -> None:
        """Waits before the next attempt, longer each time, with jitter; `until` or the end cut it short."""
        first, longest = BACKOFF_SECONDS
        try:
            async with asyncio.timeout(
                min(longest, first * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
            ):
                while not (self._box.ended or until()):
                    self._change.clear()
                    await self._change.wait()
        except TimeoutError:
            pass

    async def _keep_linked(self) -> None:
        attempt, last = 0, ""
        while not self._box.ended:
            try:
                if await self._serve_link():
                    attempt, last = 0, ""
                reason = "the syncer ended the session"
            except TransportError as error:
                reason = str(error)
            self._box.disconnect()
            kind = reason.split(";")[0]  # behind it stands the address tried last, which changes
            if kind != last and not self._box.ended:
                log.warning("no link to shard %d of the syncer, training goes on: %s", self._shard, reason)
                last = kind
            await self._pause(attempt)
            attempt += 1

    async def _serve_link(self) -> bool:
        """One session from Hello to its end; true when it was welcomed."""
        versions = self._box.connect()
        hello = Hello(
            protocol=PROTOCOL,
            run_uid=self._run.uid,
            unit=self._unit.unit,
            incarnation=self._unit.incarnation,
            host=self._unit.host,
            hosts=self._unit.hosts,
            fingerprint=self._fingerprint,
            codec=self._codec,
            versions=versions,
            seeded_step=self._seed[0],
            seed_message=self._seed[1],
            address=self._unit.address,
        )
        welcomed = False
        self._changed()
        try:
            async with contextlib.aclosing(self._network.session(hello, self._outgoing())) as session:  # type: ignore[type-var]
                async for message in session:
                    if isinstance(message, Welcome):
                        welcomed = True
                        log.info("linked to shard %d at global step %d", self._shard, message.global_step)
                    self._box.deliver(message)
                    if self._box.ended:
                        break
        except TransportError:
            if not welcomed:
                raise
        return welcomed

    async def _outgoing(self) -> AsyncIterator[Up]:
        """What this host says: marks and headers at once, a report not before its time."""
        while not self._box.ended:
            if not self._box.waiting[0]:
                self._say.clear()
                await self._say.wait()
                continue
            wait = self._quiet_until - self._loop.time()
            if wait > 0 and not self._box.urgent:
                self._say.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._say.wait()
                continue
            if (message := self._box.next_up()) is not None:
                if isinstance(message, Report):
                    self._quiet_until = self._loop.time() + REPORT_SECONDS
                yield message

    async def _fetch_all(self) -> None:
        attempt, holdings = 0, Holdings(self._codec, self._bounds)
        while not self._box.ended:
            if (errand := self._box.next_errand()) is None:
                self._fetch.clear()
                await self._fetch.wait()
                continue
            p, (start, stop) = errand.fragment, self._bounds[errand.fragment]
            held = holdings.of(p)
            request = FetchRequest(
                unit=self._unit.unit,
                incarnation=self._unit.incarnation,
                fragment=p,
                version=errand.version,
                start=start,
                stop=stop,
                codec=self._codec,
                held=held.version,
                series=held.series,
            )
            began = self._loop.time()
            try:
                head, body = await self._network.fetch(request)
                part = await asyncio.to_thread(holdings.take, head, body)
            except TransportError as error:
                log.warning("fragment %d version %d was not fetched: %s", p, errand.version, error)
                self._box.postpone(errand)
                await self._pause(attempt)
                attempt += 1
            else:
                attempt = 0
                arrival = Arrival(head.version, part, errand.lineage)
                self._box.put_arrival(errand, arrival, head, self._loop.time() - began)

    async def _push_all(self) -> None:
        while not self._box.ended:
            if (waiting := self._box.next_push()) is None:
                self._push.clear()
                await self._push.wait()
                continue
            head, part = waiting
            self._box.count_push(head, *await self._send(head, part))

    async def _send(self, head: PushHead, part: NDArray[Any]) -> tuple[bool, float]:
        """Sends until an answer comes, the round is over (the next waits for the link), or the attempts are used up.
        Says whether it was accepted, and the seconds of the last attempt."""
        body, seconds = await asyncio.to_thread(codecs.pack, part, self._codec), 0.0

        def wanted() -> bool:
            return self._box.is_open(head.round)

        for attempt in range(PUSH_ATTEMPTS):
            if not wanted():
                return False, seconds
            began = self._loop.time()
            try:
                reply = await self._network.push(head, body, wanted)
            except TransportError as error:
                seconds = self._loop.time() - began
                if wanted():
                    log.warning("a part for %s was not sent: %s", head.round, error)
                await self._pause(attempt, lambda: not wanted())
                continue
            if not reply.accepted:
                log.info("a part for %s was not taken: %s", head.round, reply.reason)
            return reply.accepted, self._loop.time() - began
        return False, seconds

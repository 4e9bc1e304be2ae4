"""Both ends of another shard's session with shard 0, which carries shard 0's decisions and the other's standing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from atoll_runtime.interfaces import Network
from atoll_runtime.protocol.events import ShardLeft, ShardTold
from atoll_runtime.protocol.messages import Orders, Standing
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.summary import Other
from atoll_runtime.transport.messages import PROTOCOL, Figures, Refused, ShardHello
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import Up

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.2, 5.0)
"""First and longest wait between two attempts."""
FIGURES_SECONDS = 1.0
"""Seconds between two times that a shard tells its figures."""


class Following:
    """Keeps a session with shard 0, and reconnects with back-off and jitter. Without one this shard opens no round."""

    def __init__(
        self,
        driver: Driver,
        network: Network,
        figures: Callable[[], Figures],
        seconds: float = FIGURES_SECONDS,
    ) -> None:
        """`seconds`: see `FIGURES_SECONDS`."""
        self._driver, self._network, self._figures, self._seconds = driver, network, figures, seconds
        self._backoff = Backoff(*BACKOFF_SECONDS)

    async def serve(self) -> None:
        """Runs until cancelled."""
        last = ""
        while True:
            try:
                await self._follow()
                reason = "it ended the session"
            except TransportError as error:
                reason = str(error)
            kind = reason.split(";")[0]  # after it comes the address tried last, which changes
            if kind != last:
                log.warning("no session with shard 0, no round is opened: %s", reason)
                last = kind
            await self._backoff.wait()

    async def _follow(self) -> None:
        """Holds one session."""
        rules = self._driver.machine.rules
        standing = self._driver.machine.standing
        hello = ShardHello(PROTOCOL, self._driver.run.uid, rules.shard, rules.shards, standing)
        session = self._network.session(hello, self._outgoing())
        async with contextlib.aclosing(session):  # type: ignore[type-var]
            async for message in session:
                if isinstance(message, Refused):
                    raise TransportError(message.reason)
                if isinstance(message, Orders):
                    self._backoff = Backoff(*BACKOFF_SECONDS)
                    self._driver.feed(message)

    async def _outgoing(self) -> AsyncIterator[Up]:
        standing: Any = None
        clock, due = self._driver.now, 0.0
        while True:
            if clock() >= due:
                yield self._figures()
                due = clock() + self._seconds
            with contextlib.suppress(TimeoutError):
                # Not `wait_for`, which may lose a cancellation in Python 3.11.
                async with asyncio.timeout(due - clock()):
                    standing = await self._driver.news.after(standing)
                if standing.done:  # shard 0 may now end the run, and the operator reads no later status
                    yield self._figures()
                yield standing


@contextlib.contextmanager
def followed(driver: Driver, known: Other, hello: ShardHello, incoming: AsyncIterator[Up]) -> Iterator[None]:
    """On shard 0: reads the messages of another shard while its session lasts. When no more can be read, cancels the
    task that serves the session; the other shard then connects again."""
    shard, mine, serving = hello.shard, object(), asyncio.current_task()
    assert serving is not None
    known.session = mine
    driver.feed(ShardTold(shard, hello.standing))

    async def read() -> None:
        async for message in incoming:
            if known.session is not mine:
                return
            if isinstance(message, Standing):
                driver.feed(ShardTold(shard, message))
            elif isinstance(message, Figures):
                known.figures, known.away_since = message, None

    def ended(reader: asyncio.Task[None]) -> None:
        if reader.cancelled():
            return
        if (error := reader.exception()) is not None:
            log.warning("ended the session of shard %d: %s", shard, error)
        serving.cancel()

    reader = asyncio.create_task(read())
    reader.add_done_callback(ended)
    try:
        yield
    finally:
        reader.cancel()
        if known.session is mine:
            known.session = None
            known.away_since = known.away_since or time.time()
            driver.feed(ShardLeft(shard))

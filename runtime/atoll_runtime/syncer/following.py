"""The session of another shard with shard 0, at both ends: what shard 0 decides, and where the other shard is."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

from atoll_runtime.contract import SyncerStatus, dump
from atoll_runtime.interfaces import Network
from atoll_runtime.protocol.events import ShardLeft, ShardTold
from atoll_runtime.protocol.messages import Orders, Standing
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.summary import Other
from atoll_runtime.transport.messages import PROTOCOL, Figures, Refused, ShardHello
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import Down, Up

log = logging.getLogger(__name__)

BACKOFF_SECONDS = (0.2, 5.0)
"""First and longest wait between two attempts."""
FIGURES_SECONDS = (1.0, 15.0)
"""Between two reports of this shard, of a run of few units and of one of very many."""
UNITS_PER_SECOND = 100.0
"""Reports of units that are sent, so that they cost the same for runs of any size."""


class Following:
    """Connects for ever, with back-off and jitter. While shard 0 is away no round is opened here."""

    def __init__(
        self,
        driver: Driver,
        network: Network,
        report: Callable[[], SyncerStatus],
        figures: tuple[float, float] = FIGURES_SECONDS,
    ) -> None:
        """`figures`: see `FIGURES_SECONDS`."""
        self._driver, self._network, self._report, self._figures = driver, network, report, figures
        self._backoff = Backoff(*BACKOFF_SECONDS)

    async def serve(self) -> None:
        """Until cancelled."""
        last = ""
        while True:
            try:
                await self._follow()
                reason = "it ended the session"
            except TransportError as error:
                reason = str(error)
            kind = reason.split(";")[0]  # behind it stands the address tried last, which changes
            if kind != last:
                log.warning("no session with shard 0, no round is opened: %s", reason)
                last = kind
            await self._backoff.wait()

    async def _follow(self) -> None:
        """One session."""
        rules = self._driver.machine.rules
        standing = self._driver.machine.standing
        hello = ShardHello(PROTOCOL, self._driver.run.uid, rules.shard, rules.shards, standing)
        session = self._network.session(hello, self._outgoing())
        async with contextlib.aclosing(session):  # type: ignore[type-var]
            async for message in session:
                self._take(message)

    def _take(self, message: Down) -> None:
        match message:
            case Orders():
                self._backoff = Backoff(*BACKOFF_SECONDS)
                self._driver.feed(message)
            case Refused(reason):
                raise TransportError(reason)

    async def _outgoing(self) -> AsyncIterator[Up]:
        standing, clock, due = None, self._driver.now, 0.0
        while True:
            if clock() >= due:
                report = self._report()
                yield Figures(dump(report).encode())
                least, most = self._figures
                due = clock() + min(max(least, len(report.units) / UNITS_PER_SECOND), most)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    due - clock()
                ):  # `wait_for` of Python 3.11 may lose a cancellation
                    standing = await self._driver.news.after(standing)
                yield standing


class FollowerSession:
    """At shard 0."""

    def __init__(self, driver: Driver, known: Other, hello: ShardHello, incoming: AsyncIterator[Up]) -> None:
        self.shard = hello.shard
        self._driver, self._known, self._incoming = driver, known, incoming
        self._seen: Orders | None = None
        known.session = self
        driver.feed(ShardTold(self.shard, hello.standing))
        self._reader = asyncio.create_task(self._read())

    async def news(self) -> Orders:
        """What shard 0 has announced, once this shard was not told yet."""
        orders: Orders = await self._driver.news.after(self._seen)
        self._seen = orders
        return orders

    def leave(self) -> None:
        """The session has ended."""
        self._reader.cancel()
        if self._newest:
            self._known.session = None
            self._known.away_since = self._known.away_since or time.time()
            self._driver.feed(ShardLeft(self.shard))

    @property
    def _newest(self) -> bool:
        """No newer session has taken the place of this one."""
        return self._known.session is self

    async def _read(self) -> None:
        async for message in self._incoming:
            if not self._newest:
                return
            if isinstance(message, Standing):
                self._driver.feed(ShardTold(self.shard, message))
            elif isinstance(message, Figures):
                self._known.report = SyncerStatus.model_validate_json(message.report)
                self._known.away_since = None

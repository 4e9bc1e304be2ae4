"""The sessions of the other shards with shard 0."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from atoll_runtime.contract import SyncerStatus
from atoll_runtime.protocol.events import Orders, ShardLeft, ShardTold
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.summary import Other
from atoll_runtime.transport.shardmessages import Figures, Order, ShardHello, Tell
from atoll_runtime.transport.wire import Up


class FollowerSession:
    """One session."""

    def __init__(self, driver: Driver, known: Other, hello: ShardHello, incoming: AsyncIterator[Up]) -> None:
        self.shard = hello.shard
        self._driver, self._known, self._incoming = driver, known, incoming
        self._seen: Orders | None = None
        driver.shards[self.shard] = self
        driver.feed(ShardTold(self.shard, hello.standing))
        self._reader = asyncio.create_task(self._read())

    async def news(self) -> Order:
        """What shard 0 has announced, once this shard was not told yet."""
        self._seen = await self._driver.orders.after(self._seen)
        return Order(self._seen)

    def leave(self) -> None:
        """The session has ended."""
        self._reader.cancel()
        if self._newest:
            del self._driver.shards[self.shard]
            self._known.away_since = self._known.away_since or time.time()
            self._driver.feed(ShardLeft(self.shard))

    @property
    def _newest(self) -> bool:
        """No newer session has taken the place of this one."""
        return self._driver.shards.get(self.shard) is self

    async def _read(self) -> None:
        async for message in self._incoming:
            if not self._newest:
                return
            if isinstance(message, Tell):
                self._driver.feed(ShardTold(self.shard, message.standing))
            elif isinstance(message, Figures):
                self._known.report = SyncerStatus.model_validate_json(message.report)
                self._known.away_since = None

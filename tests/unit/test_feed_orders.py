"""How often the operator asks a shard for a cut."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from atoll_operator.certificates.authority import Authorities, client_context, load_pair
from atoll_operator.kube.keys import Key
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import shard_host
from atoll_operator.polling.syncer import Feeds
from atoll_operator.settings import Settings
from atoll_runtime.contract import CheckpointReport, Order, SyncerStatus, dump

NOW = datetime.datetime.now(datetime.UTC)
RUN = Key("TrainingRun", "ns", "r")
ENOUGH = 5
"""Polls after which nothing more is asked."""


class Shard:
    """A syncer that forgets what it was asked for when it is started anew, as one does that is killed at once."""

    def __init__(self, lives: int, number: int = 0, shards: int = 1) -> None:
        self.lives, self.restarts, self.polls = lives, 0, 0
        self.number, self.shards, self.orderable = number, shards, 0
        self.orders: list[tuple[int, int]] = []
        """Restarts, and the step that was asked for."""
        self.over = asyncio.Event()

    async def told(self, _: web.Request) -> web.Response:
        self.polls += 1
        asked = any(restarts == self.restarts for restarts, _ in self.orders)
        if asked and self.restarts < self.lives - 1:
            self.restarts, self.polls = self.restarts + 1, 0
        if asked and self.polls >= ENOUGH:
            self.over.set()
        report = SyncerStatus(
            run_uid="u",
            phase="Running",
            global_step=245,
            restarts=self.restarts,
            checkpoint=CheckpointReport(newest_step=200, uri="gs://b", orderable=self.orderable),
            shard=self.number,
            shards=self.shards,
        )
        return web.Response(text=dump(report), content_type="application/json")

    async def ordered(self, request: web.Request) -> web.Response:
        self.orders.append((self.restarts, Order.model_validate_json(await request.read()).cut))
        return web.Response(status=202)


@contextlib.asynccontextmanager
async def serving(shards: Sequence[Shard]) -> AsyncIterator[None]:
    """The operator polls these shards of one run, and wants a cut."""
    authorities = Authorities.of("r", (), NOW)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client_context()
    hosts = [shard_host("r", "ns", s) for s in range(len(shards))]
    pair = authorities.signer.issue("r-syncer", "spiffe://atoll.dev/s", hosts, NOW)
    load_pair(server, pair.certificate, pair.key)
    authorities.equip(client, authorities.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    application = web.Application()
    for s, shard in enumerate(shards):
        application.router.add_get(f"/{s}/status", shard.told)
        application.router.add_post(f"/{s}/status", shard.ordered)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/{{shard}}/status"
    feeds = Feeds(
        Settings(runtime_image="i", feed_url=url, feed_seconds=0.05), Metrics(), lambda run, units: None
    )
    try:
        feeds.ensure(RUN, "u", len(shards), client)
        feeds.save(RUN, True)
        yield
    finally:
        await feeds.close()
        await runner.cleanup()


async def test_a_shard_is_asked_for_a_cut_once_in_each_of_its_lives() -> None:
    shard = Shard(lives=3)
    async with serving([shard]), asyncio.timeout(30):
        await shard.over.wait()
    assert shard.orders == [(0, 245), (1, 245), (2, 245)]


async def test_the_other_shards_are_asked_once_shard_0_is_past_any_final_cut() -> None:
    """They cannot know whether one that has begun still comes to stand."""
    first, other = Shard(lives=1, number=0, shards=2), Shard(lives=1, number=1, shards=2)
    other.orderable = 246
    async with serving([first, other]), asyncio.timeout(30):
        await first.over.wait()
        assert (first.orders, other.orders) == ([(0, 246)], [])
        first.orderable = 246
        await other.over.wait()
    assert (first.orders, other.orders) == ([(0, 246)], [(0, 246)])

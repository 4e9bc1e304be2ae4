"""How often the operator asks a shard for a cut."""

from __future__ import annotations

import asyncio
import datetime
import ssl

from aiohttp import web

from atoll_operator.certs import Authorities, client_context
from atoll_operator.credentials import load_pair
from atoll_operator.feed import Feeds
from atoll_operator.keys import Key
from atoll_operator.metrics import Metrics
from atoll_operator.plan.names import shard_host
from atoll_operator.settings import Settings
from atoll_runtime.contract import CheckpointReport, Order, SyncerStatus, dump

NOW = datetime.datetime.now(datetime.UTC)
RUN = Key("TrainingRun", "ns", "r")
ENOUGH = 5
"""Polls after which nothing more is asked."""


class Shard:
    """A syncer that forgets what it was asked for when it is started anew, as one does that is killed at once."""

    def __init__(self, lives: int) -> None:
        self.lives, self.restarts, self.polls = lives, 0, 0
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
            checkpoint=CheckpointReport(newest_step=200, uri="gs://b"),
        )
        return web.Response(text=dump(report), content_type="application/json")

    async def ordered(self, request: web.Request) -> web.Response:
        self.orders.append((self.restarts, Order.model_validate_json(await request.read()).cut))
        return web.Response(status=202)


async def test_a_shard_is_asked_for_a_cut_once_in_each_of_its_lives() -> None:
    authorities = Authorities.of("r", (), NOW)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), client_context()
    pair = authorities.signer.issue("r-syncer", "spiffe://atoll.dev/s", [shard_host("r", "ns", 0)], NOW)
    load_pair(server, pair.certificate, pair.key)
    authorities.equip(client, authorities.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    shard, application = Shard(lives=3), web.Application()
    application.router.add_get("/status", shard.told)
    application.router.add_post("/status", shard.ordered)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=server).start()
    url = f"https://127.0.0.1:{runner.addresses[0][1]}/status"
    feeds = Feeds(
        Settings(runtime_image="i", feed_url=url, feed_seconds=0.05), Metrics(), lambda run, units: None
    )
    try:
        feeds.ensure(RUN, "u", 1, client)
        feeds.save(RUN, True)
        async with asyncio.timeout(30):
            await shard.over.wait()
    finally:
        await feeds.close()
        await runner.cleanup()
    assert shard.orders == [(0, 245), (1, 245), (2, 245)]

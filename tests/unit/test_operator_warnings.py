"""What the operator's log calls a warning: that a syncer is gone, and not that it has yet to come."""

from __future__ import annotations

import asyncio
import logging
import ssl

import pytest
from aiohttp import web
from answering import answering

from atoll_operator.kube.cache import Key
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.run.status_diff import StatusDiff
from atoll_operator.polling.syncer import SyncerPoller
from atoll_operator.settings import Settings
from atoll_runtime.contract import SyncerStatus, dump

RUN = Key("TrainingRun", "ns", "r")


@pytest.mark.parametrize(
    ("said", "level", "reason"),
    [
        pytest.param([], logging.INFO, "SyncerUnavailable", id="it-has-yet-to-come"),
        pytest.param(["u"], logging.WARNING, "SyncerUnavailable", id="it-was-there"),
        pytest.param(["other"], logging.WARNING, "SyncerOfAnotherRun", id="another-one-answers-first"),
    ],
)
async def test_a_syncer_that_has_yet_to_come_is_no_warning(
    said: list[str], level: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """`said`: uids of the runs in its answers, after which it is silent."""
    answers = iter(said)
    missed = asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        uid = next(answers, None)
        if uid is None:
            return web.Response(status=503)
        return web.Response(text=dump(SyncerStatus(run_uid=uid, phase="Running")))

    def changed(run: Key, _: StatusDiff) -> None:
        if feeds.state(run, "u").reason:
            missed.set()

    caplog.set_level(logging.INFO, "atoll")
    async with answering(handle) as address:
        settings = Settings(runtime_image="i", syncer_url=f"{address}/status", poll_seconds=0.01)
        feeds = SyncerPoller(settings, Metrics(), changed)
        feeds.ensure(RUN, "u", 1, ssl.create_default_context())
        try:
            async with asyncio.timeout(30):
                await missed.wait()
        finally:
            await feeds.close()
    told = [(record.levelno, record.fields["reason"]) for record in caplog.records if record.name == "atoll"]
    assert told == [(level, reason)]

"""Polling of a pod's status over real TLS: what is read, when a syncer counts as unavailable, who is asked to save."""

from __future__ import annotations

import asyncio
import datetime
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from atoll_operator.certificates.authority import Authorities, client_context, load_pair
from atoll_operator.kube.cache import Key
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import evaluator_host, shard_host
from atoll_operator.plan.run.syncer_state import CheckpointOrder, StatusDiff
from atoll_operator.polling.evaluator import EvaluatorPoller
from atoll_operator.polling.poller import BODY_LIMIT, PollFailed, fetch
from atoll_operator.polling.syncer import SyncerPoller
from atoll_operator.settings import Settings
from atoll_runtime.contract import (
    CheckpointReport,
    EvaluatorStatus,
    LedgerReport,
    Order,
    SyncerStatus,
    UnitReport,
    dump,
)

NOW = datetime.datetime.now(datetime.UTC)
HOSTS = [shard_host("r", "ns", 0), shard_host("r", "ns", 1), evaluator_host("r", "ns")]
RUN = Key("TrainingRun", "ns", "r")
INTERVAL = 0.05
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[..., Awaitable[str]]


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the pod and of the operator."""
    authorities = Authorities.of("r", (), NOW)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=authorities.bundle.decode())
    pair = authorities.signer.issue("r-syncer", "spiffe://atoll.dev/s", HOSTS, NOW)
    load_pair(server, pair.certificate, pair.key)
    client = client_context()
    authorities.equip(client, authorities.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    return server, client


@pytest.fixture
async def serve(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> AsyncIterator[Serve]:
    """Start pods whose status is at `/0`, `/1`, …; returns the URL with `{shard}` in it."""
    runners: list[web.AppRunner] = []

    async def start(*handlers: Handler) -> str:
        application = web.Application()
        for shard, handler in enumerate(handlers):
            application.router.add_route("*", f"/{shard}", handler)
        runner = web.AppRunner(application)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=contexts[0]).start()
        return f"https://127.0.0.1:{runner.addresses[0][1]}/{{shard}}"

    yield start
    for runner in runners:
        await runner.cleanup()


def answer(report: SyncerStatus | EvaluatorStatus, status: int = 200) -> web.Response:
    return web.Response(status=status, text=dump(report), content_type="application/json")


def of_units(count: int) -> SyncerStatus:
    report = UnitReport(incarnation=1, hosts=4, state="Learning", step=10**6, tokens=10**12, loss=2.345678901)
    ledger = LedgerReport(trained=10**14, merged=10**14 - 7, discarded={"Missed": 4, "Replaced": 3})
    names = [f"r-pool-{index}" for index in range(count)]
    return SyncerStatus(
        run_uid="u", phase="Running", units=dict.fromkeys(names, report), ledger=dict.fromkeys(names, ledger)
    )


@pytest.mark.parametrize(
    ("report", "padding", "reason"),
    [
        pytest.param(of_units(1000), "", "", id="many-packets"),
        pytest.param(SyncerStatus(run_uid="u", phase="Starting"), " " * BODY_LIMIT, "TooLong", id="too-long"),
        pytest.param(
            EvaluatorStatus(run_uid="u", phase="Waiting"), " " * BODY_LIMIT, "TooLong", id="evaluator"
        ),
        pytest.param(SyncerStatus(run_uid="u", phase="Starting"), "}", "Invalid", id="no-json"),
    ],
)
async def test_a_report_is_read_whole_up_to_a_limit(
    serve: Serve, contexts: Any, report: Any, padding: str, reason: str
) -> None:
    async def handle(_: web.Request) -> web.Response:
        return web.Response(text=dump(report) + padding)

    url = (await serve(handle)).format(shard=0)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=contexts[1])) as session:
        if not reason:
            assert await fetch(session, url, HOSTS[0], "u", type(report)) == report
            return
        with pytest.raises(PollFailed, match="status cannot be read") as caught:
            await fetch(session, url, HOSTS[0], "u", type(report))
    assert caught.value.reason == f"{type(report).__name__}{reason}"


@pytest.fixture
async def poll(serve: Serve, contexts: Any) -> AsyncIterator[Callable[..., Awaitable[SyncerPoller]]]:
    """Poll a syncer with these handlers."""
    pollers: list[SyncerPoller] = []

    async def start(changed: Callable[[Key, StatusDiff], None], *handlers: Handler) -> SyncerPoller:
        settings = Settings(runtime_image="i", syncer_url=await serve(*handlers), poll_seconds=INTERVAL)
        poller = SyncerPoller(settings, Metrics(), changed)
        pollers.append(poller)
        poller.ensure(RUN, "u", len(handlers), contexts[1])
        return poller

    yield start
    for poller in pollers:
        await poller.close()


@dataclass
class Answers:
    """A syncer's answers in turn: a status code with this run's report, or another report. The last one stays."""

    script: list[Any]
    asked: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, _: web.Request) -> web.Response:
        if self.asked >= len(self.script):
            self.over.set()
        said = self.script[min(self.asked, len(self.script) - 1)]
        self.asked += 1
        return answer(said) if isinstance(said, SyncerStatus) else answer(of_units(1), said)


OTHER_RUN = SyncerStatus(run_uid="other", phase="Running")
OTHER_SHARD = SyncerStatus(run_uid="u", phase="Running", shard=1, shards=2)


@pytest.mark.parametrize(
    ("script", "states", "warnings"),
    [
        pytest.param([200, 503, 200, 503, 200], [""], [], id="each-second-poll-fails"),
        pytest.param(
            [200, 503, 503, 200], ["", "SyncerUnavailable", ""], ["SyncerUnavailable"], id="two-in-a-row-fail"
        ),
        pytest.param([503, 503, 200], ["SyncerUnavailable", ""], [], id="it-has-yet-to-come"),
        pytest.param(
            [OTHER_RUN, 200],
            ["SyncerOfAnotherRun", ""],
            ["SyncerOfAnotherRun"],
            id="another-run-answers-first",
        ),
        pytest.param(
            [200, OTHER_SHARD, OTHER_SHARD, 200],
            ["", "SyncerShardMismatch", ""],
            ["SyncerShardMismatch"],
            id="another-shard-answers",
        ),
    ],
)
async def test_a_syncer_is_unavailable_after_two_failed_polls_in_a_row_and_its_loss_is_a_warning(
    poll: Any,
    script: list[Any],
    states: list[str],
    warnings: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers, seen = Answers(script), []

    def changed(run: Key, diff: StatusDiff) -> None:
        if diff.run:
            state = poller.state(run, "u")
            assert state.answers is (not state.reason)
            seen.append(state.reason)

    poller = await poll(changed, answers.handle)
    async with asyncio.timeout(30):
        await answers.over.wait()
    assert seen == states
    told = [
        record for record in caplog.records if record.name == "atoll" and record.levelno == logging.WARNING
    ]
    assert [record.fields["reason"] for record in told] == warnings


async def test_silent_syncer_of_many_units_is_polled_again_soon(poll: Any) -> None:
    """While it answers it is polled every 15 s; that it is unavailable must not be noticed so slowly."""
    polled, unavailable = asyncio.Event(), asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        if polled.is_set():
            return web.Response(status=503)
        polled.set()
        return answer(of_units(1500))

    def changed(run: Key, _: StatusDiff) -> None:
        if poller.state(run, "u").reason:
            unavailable.set()
        else:
            poller.poke(run)

    poller = await poll(changed, handle)
    async with asyncio.timeout(12):
        await unavailable.wait()


async def test_stopped_poll_keeps_its_last_report_and_a_forgotten_one_does_not(poll: Any) -> None:
    async def handle(_: web.Request) -> web.Response:
        return answer(of_units(1))

    heard = asyncio.Event()
    poller = await poll(lambda run, diff: heard.set(), handle)
    async with asyncio.timeout(30):
        await heard.wait()
    poller.stop(RUN)
    state = poller.state(RUN, "u")
    assert (state.answers, len(state.status.units)) == (False, 1)
    assert poller.state(RUN, "another").status is None
    poller.forget(RUN)
    assert poller.state(RUN, "u").status is None


async def test_evaluator_is_polled_and_reports_what_is_new(serve: Serve, contexts: Any) -> None:
    codes = iter([503, 200])

    async def handle(_: web.Request) -> web.Response:
        return answer(EvaluatorStatus(run_uid="u", phase="Waiting"), next(codes, 200))

    seen: asyncio.Queue[tuple[str, bool]] = asyncio.Queue()

    def changed(run: Key) -> None:
        state = poller.state(run, "u")
        seen.put_nowait((state.reason, state.status is not None))

    url = (await serve(handle)).format(shard=0)
    settings = Settings(runtime_image="i", evaluator_url=url, poll_seconds=INTERVAL)
    poller = EvaluatorPoller(settings, Metrics(), changed)
    poller.ensure(RUN, "u", 1, contexts[1])
    try:
        async with asyncio.timeout(30):
            assert [await seen.get(), await seen.get()] == [("EvaluatorUnavailable", False), ("", True)]
    finally:
        await poller.close()


class Shard:
    """Shard 0 at step 245, which is restarted or gives each cut up but the last that it is asked for."""

    def __init__(self, failures: int, shards: int = 1) -> None:
        self.failures, self.shards = failures, shards
        self.orders: list[int] = []
        self.polls = 0
        """Since its checkpoint holds all."""
        self.over = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "POST":
            self.orders.append(Order.model_validate_json(await request.read()).cut)
            return web.Response(status=202)
        saved = len(self.orders) > self.failures
        self.polls += saved
        if self.polls >= 5:
            self.over.set()
        newest = self.orders[-1] if saved else 200
        checkpoint = CheckpointReport(newest_step=newest, uri="gs://b", current=saved)
        report = SyncerStatus(run_uid="u", phase="Running", global_step=245, checkpoint=checkpoint)
        return answer(report.model_copy(update={"shards": self.shards}))


async def test_shard_0_is_asked_to_save_until_a_checkpoint_holds_everything(poll: Any) -> None:
    shard = Shard(failures=2)
    poller = await poll(lambda run, diff: None, shard.handle)
    poller.save(RUN, True)
    async with asyncio.timeout(30):
        await shard.over.wait()
    assert shard.orders == [245] * 3
    assert poller.order(RUN, "u") == CheckpointOrder(245)


async def test_a_checkpoint_while_training_is_asked_for_until_nobody_wants_it_any_more(poll: Any) -> None:
    shard = Shard(failures=1)

    def changed(run: Key, diff: StatusDiff) -> None:
        if poller.state(run, "u").status.checkpoint.current:
            poller.request(run, None)

    poller = await poll(changed, shard.handle)
    poller.request(RUN, 240)
    async with asyncio.timeout(30):
        await shard.over.wait()
    assert shard.orders in ([240] * 2, [240] * 3), "the report says so with the next poll"


async def test_of_several_shards_the_first_alone_is_asked(poll: Any) -> None:
    first, asked = Shard(failures=0, shards=2), []

    async def second(request: web.Request) -> web.Response:
        asked.append(request.method)
        return web.Response(status=500)

    poller = await poll(lambda run, diff: None, first.handle, second)
    poller.save(RUN, True)
    async with asyncio.timeout(30):
        await first.over.wait()
    assert poller.state(RUN, "u").serving_since is not None and asked == []

"""What is read of a pod's status over TLS, and what a syncer that does not answer is taken for."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from atoll_operator.certificates.authority import Authorities, client_context, load_pair
from atoll_operator.kube.keys import Key
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import shard_host
from atoll_operator.plan.run.feednews import FeedNews
from atoll_operator.polling.reports import BODY_LIMIT, Unanswered, fetch
from atoll_operator.polling.syncer import Feeds
from atoll_operator.settings import Settings
from atoll_runtime.contract import EvaluatorStatus, LedgerReport, SyncerStatus, UnitReport, dump

NOW = datetime.datetime.now(datetime.UTC)
HOST = shard_host("r", "ns", 0)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve = Callable[[Handler], Awaitable[str]]


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Of the pod and of the operator."""
    authorities = Authorities.of("r", (), NOW)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_verify_locations(cadata=authorities.bundle.decode())
    pair = authorities.signer.issue("r-syncer", "spiffe://atoll.dev/s", [HOST], NOW)
    load_pair(server, pair.certificate, pair.key)
    client = client_context()
    authorities.equip(client, authorities.signer.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    return server, client


@pytest.fixture
async def serve(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> AsyncIterator[Serve]:
    """Starts a pod's `/status`; returns its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Handler) -> str:
        application = web.Application()
        application.router.add_get("/status", handler)
        runner = web.AppRunner(application)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=contexts[0]).start()
        return f"https://127.0.0.1:{runner.addresses[0][1]}/status"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def read(
    serve: Serve, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Reads a status of which the second part is sent when the operator has the head of the answer."""
    begun = asyncio.Event()

    async def began(*_: object) -> None:
        begun.set()

    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(began)
    connector = aiohttp.TCPConnector(ssl=contexts[1])

    async def answer(first: bytes, rest: bytes, kind: Any, who: Any) -> Any:
        async def handle(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(first)
            async with asyncio.timeout(30):
                await begun.wait()
            await response.write(rest)
            return response

        return await fetch(session, await serve(handle), HOST, "u", kind, who)

    async with aiohttp.ClientSession(connector=connector, trace_configs=[trace]) as session:
        yield answer


def of_units(count: int) -> SyncerStatus:
    report = UnitReport(incarnation=1, hosts=4, state="Learning", step=10**6, tokens=10**12, loss=2.345678901)
    ledger = LedgerReport(trained=10**14, merged=10**14 - 7, discarded={"Missed": 4, "Replaced": 3})
    names = [f"r-pool-{index}" for index in range(count)]
    return SyncerStatus(
        run_uid="u", phase="Running", units=dict.fromkeys(names, report), ledger=dict.fromkeys(names, ledger)
    )


async def test_the_status_of_a_thousand_units_with_ledgers_is_read_whole(read: Any) -> None:
    status = of_units(1000)
    body = dump(status).encode()
    assert await read(body, b"", SyncerStatus, "syncer") == status


@pytest.mark.parametrize(
    ("status", "who"),
    [
        pytest.param(of_units(10), "syncer", id="syncer"),
        pytest.param(EvaluatorStatus(run_uid="u", phase="Waiting", message="waits"), "evaluator", id="evaluator"),
    ],
)  # fmt: skip
async def test_a_status_that_comes_in_two_parts_is_read_whole(read: Any, status: Any, who: str) -> None:
    body = dump(status).encode()
    half = len(body) // 2
    assert await read(body[:half], body[half:], type(status), who) == status


@pytest.mark.parametrize(
    ("kind", "who", "reason"),
    [
        pytest.param(SyncerStatus, "syncer", "SyncerStatusTooLong", id="syncer"),
        pytest.param(EvaluatorStatus, "evaluator", "EvaluatorStatusTooLong", id="evaluator"),
    ],
)
async def test_a_status_of_one_byte_more_than_the_limit_is_refused_by_name(
    read: Any, kind: Any, who: str, reason: str
) -> None:
    status = dump(kind(run_uid="u", phase="Starting")).encode()
    longest = status + b" " * (BODY_LIMIT - len(status))
    assert (await read(longest, b"", kind, who)).phase == "Starting"
    with pytest.raises(Unanswered, match=f"{who}'s status .* more than {BODY_LIMIT} bytes") as caught:
        await read(longest, b" ", kind, who)
    assert caught.value.reason == reason


async def followed(serve: Serve, context: ssl.SSLContext, codes: list[int]) -> list[tuple[bool, str]]:
    """Whether the syncer answers and what is wrong with it, at each news, while polls end with these codes."""
    answers, over = iter(codes), asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        code = next(answers, 0)
        if not code:
            over.set()
        return web.Response(status=code or codes[-1], text=dump(of_units(1)), content_type="application/json")

    def changed(run: Key, _: FeedNews) -> None:
        state = feeds.state(run, "u")
        news.append((state.answers, state.reason))

    news: list[tuple[bool, str]] = []
    settings = Settings(runtime_image="i", feed_url=await serve(handle), feed_seconds=0.05)
    feeds = Feeds(settings, Metrics(), changed)
    feeds.ensure(Key("TrainingRun", "ns", "r"), "u", 1, context)
    try:
        async with asyncio.timeout(30):
            await over.wait()
    finally:
        await feeds.close()
    return news


@pytest.mark.parametrize(
    ("codes", "news"),
    [
        pytest.param([200, 503, 200, 503, 200], [(True, "")], id="each-second-poll-is-missed"),
        pytest.param(
            [200, 503, 503, 200],
            [(True, ""), (False, "SyncerUnavailable"), (True, "")],
            id="two-in-a-row-are-missed",
        ),
        pytest.param([503, 200], [(True, "")], id="the-first-poll-is-missed"),
    ],
)
async def test_a_syncer_is_gone_when_two_polls_in_a_row_have_no_answer(
    serve: Serve, contexts: Any, codes: list[int], news: list[tuple[bool, str]]
) -> None:
    assert await followed(serve, contexts[1], codes) == news


async def test_a_syncer_of_many_units_that_fell_silent_is_asked_again_soon(
    serve: Serve, contexts: Any
) -> None:
    """It is asked every 15 s while it answers; that it is gone is not learned so slowly."""
    polled = asyncio.Event()

    async def handle(_: web.Request) -> web.Response:
        if polled.is_set():
            return web.Response(status=503)
        polled.set()
        return web.Response(text=dump(of_units(1500)), content_type="application/json")

    gone = asyncio.Event()

    def changed(run: Key, _: FeedNews) -> None:
        if feeds.state(run, "u").reason:
            gone.set()
        else:
            feeds.poke(run)

    settings = Settings(runtime_image="i", feed_url=await serve(handle), feed_seconds=0.05)
    feeds, run = Feeds(settings, Metrics(), changed), Key("TrainingRun", "ns", "r")
    feeds.ensure(run, "u", 1, contexts[1])
    try:
        async with asyncio.timeout(12):
            await gone.wait()
    finally:
        await feeds.close()

"""The operator while its API server is away or ill: it waits, goes on where it was, and still hears signals."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import os
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from kubernetes.config import kube_config
from leaping import leap
from objects import RUN

from atoll_operator.kube import events as handlers
from atoll_operator.kube import reflector
from atoll_operator.kube.credentials import Credentials
from atoll_operator.kube.errors import Unreachable
from atoll_operator.kube.keys import Key
from atoll_operator.kube.start import START_SECONDS, answer
from atoll_operator.kube.urgency import News
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.store import Store
from atoll_operator.reconcilers.watches import Watches

Object = dict[str, Any]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
ILL = {"kind": "Status", "status": "Failure", "code": 503, "message": "etcdserver: no leader"}
KEY = Key("TrainingRun", "n", "r")


def comes_up_after(seconds: float) -> Callable[[], Awaitable[float]]:
    """An API server that nobody reaches before then; its answer is the time."""

    async def ask() -> float:
        now = asyncio.get_running_loop().time()
        if now < seconds:
            raise Unreachable("GET /version: nobody answers")
        return now

    return ask


def test_an_api_server_that_comes_up_later_than_the_operator_is_waited_for() -> None:
    assert 8 <= leap(answer(comes_up_after(8))) <= 9


def test_an_api_server_that_never_comes_up_ends_the_start_in_time_with_what_is_missing() -> None:
    async def ended() -> float:
        with pytest.raises(Unreachable, match="nobody answers"):
            await answer(comes_up_after(1e9))
        return asyncio.get_running_loop().time()

    assert START_SECONDS <= leap(ended()) <= START_SECONDS + 1


def run(version: int) -> Object:
    metadata = {"name": "r", "namespace": "n", "uid": "u", "resourceVersion": str(version), "generation": 1}
    return {**RUN, "metadata": metadata}


def refuses(status: int) -> Answer:
    async def refuse(_: web.Request) -> web.StreamResponse:
        return web.json_response({**ILL, "code": status}, status=status)

    return refuse


def lists(version: int, *items: Object) -> Answer:
    async def one(_: web.Request) -> web.StreamResponse:
        return web.json_response({"metadata": {"resourceVersion": str(version)}, "items": items})

    return one


def tells(kind: str, body: Object) -> Answer:
    """A watch of one event."""

    async def tell(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(json.dumps({"type": kind, "object": body}).encode() + b"\n")
        return response

    return tell


class ApiServer:
    """Has no objects but runs, and answers for those in turn; what is asked after that stays open."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/trainingruns") and self.answers:
            return await self.answers.pop(0)(request)
        if "watch" not in request.query:
            return await lists(1)(request)
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.sleep(60)
        return response


@contextlib.asynccontextmanager
async def serving(server: ApiServer) -> AsyncIterator[str]:
    """Its address."""
    application = web.Application()
    application.router.add_get("/{path:.*}", server.handle)
    runner = web.AppRunner(application, shutdown_timeout=0.01)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.005)


async def test_runs_are_heard_of_after_any_illness_of_the_api_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "BACK_OFF_SECONDS", 0.001)
    monkeypatch.setattr(reflector, "MAX_BACK_OFF_SECONDS", 0.002)
    server = ApiServer(
        *map(refuses, [503] * 20 + [403, 404, 401]), lists(3, run(3)),
        tells("ERROR", {**ILL, "code": 500}), refuses(403), tells("MODIFIED", run(5)),
        tells("ERROR", {**ILL, "code": 410}), *map(refuses, [503] * 20), lists(9),
    )  # fmt: skip
    store = Store()
    heard: list[tuple[Key, News, Object | None]] = []

    def hear(key: Key, news: News) -> None:
        heard.append((key, news, store.get(key)))

    async with serving(server) as address:
        access = Credentials(address, ssl.create_default_context())
        watching = asyncio.create_task(Watches(access, Metrics(), store, [], hear, nodes=False).run())
        await until(lambda: len(heard) == 3)
        assert not watching.done()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    assert heard == [(KEY, News.URGENT, seen) for seen in (run(3), run(5), None)]


class Ill(http.server.BaseHTTPRequestHandler):
    """Nothing works."""

    asked = 0

    def do_GET(self) -> None:
        """Says so."""
        type(self).asked += 1
        content = json.dumps(ILL).encode()
        self.send_response(503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def ill() -> Iterator[str]:
    """The address of an API server in another thread: kopf waits for tasks of its own loop."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ill) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(30)


async def test_an_ill_api_server_does_not_end_the_operator_and_a_signal_does_in_order(
    ill: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(handlers, "BACK_OFF_SECONDS", 0.001)
    monkeypatch.setattr(handlers, "MAX_BACK_OFF_SECONDS", 0.002)
    config = tmp_path / "kubeconfig"
    config.write_text(yaml.safe_dump(kubeconfig(ill)))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(config))
    ready, stopped = asyncio.Event(), asyncio.Event()

    async def stop() -> None:
        stopped.set()

    attending = asyncio.create_task(handlers.attend([], ready, stop))
    await until(lambda: Ill.asked > 40)
    assert ready.is_set() and not attending.done() and not stopped.is_set()
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(stopped.wait(), 30)
    attending.cancel()  # kopf waits 5 s for what its own question to the API server has left
    await asyncio.gather(attending, return_exceptions=True)


def kubeconfig(server: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": "t"}}],
    }  # fmt: skip

"""The client against a small real HTTP server: tries again, gives up, reads a rotated token, tells errors apart."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from answering import answering
from leaping import leap

from atoll_operator.cluster import Cluster
from atoll_operator.kube import client as transport
from atoll_operator.kube.errors import AlreadyExists, Conflict, NotFound, NotLeading, Refused, Unreachable
from atoll_operator.kube.gather import START_SECONDS, wait_for_api
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics

Answer = Callable[[web.Request], tuple[int, dict[str, Any]]]
POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}}


class Server:
    """Answers what the test says and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str, str]] = []
        self.address = ""
        self.retry_after = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path, request.headers.get("Authorization", "")))
        status, body = self.answers.pop(0)(request) if self.answers else (200, {})
        headers = {"Retry-After": self.retry_after} if self.retry_after and status >= 400 else {}
        return web.json_response(body, status=status, headers=headers)


@pytest.fixture
async def server(monkeypatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(transport, "BACK_OFF_SECONDS", 0.001)
    one = Server()
    async with answering(one.handle) as one.address:
        yield one


def connect(server: Server, **options: Any) -> Cluster:
    return Cluster(Credentials(server.address, ssl.create_default_context(), **options), Metrics())


async def test_nothing_is_written_when_another_operator_may_lead_by_now(server: Server) -> None:
    leads = True
    access = Credentials(server.address, ssl.create_default_context())
    async with Cluster(access, Metrics(), may_write=lambda: leads) as cluster:
        await cluster.create(POD)

        def lose(_: web.Request) -> tuple[int, dict[str, Any]]:
            nonlocal leads
            leads = False
            return 503, {}

        server.answers = [lose]
        with pytest.raises(NotLeading, match="POST /api/v1/namespaces/n/pods"):
            await cluster.create(POD)
        await cluster.get("Pod", "n", "p")
    assert [method for method, _, _ in server.requests] == ["POST", "POST", "GET"]


def says(status: int, reason: str = "", **body: Any) -> Answer:
    return lambda _: (status, {"reason": reason, "message": f"because {reason}", **body})


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_busy_server_is_asked_again(server: Server, status: int) -> None:
    server.answers = [says(status), says(status), says(200, name="x")]
    async with connect(server) as cluster:
        assert (await cluster.get("Pod", "n", "p"))["name"] == "x"
    assert len(server.requests) == 3


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_asks_for_patience_gets_it_within_bounds(server: Server, status: int) -> None:
    server.answers = [says(status), says(200, name="x")]
    server.retry_after = "3600"
    access = Credentials(server.address, ssl.create_default_context())
    loop = asyncio.get_running_loop()
    async with Cluster(access, Metrics(), longest_wait=0.1) as cluster:
        began = loop.time()
        await cluster.get("Pod", "n", "p")
    assert 0.1 <= loop.time() - began < 5


async def test_a_server_that_never_recovers_is_given_up(server: Server) -> None:
    server.answers = [says(500, "Broken")] * 10
    async with connect(server) as cluster:
        with pytest.raises(Unreachable, match="because Broken"):
            await cluster.get("Pod", "n", "p")
    assert len(server.requests) == transport.TRIES


async def test_nobody_listening_is_unreachable(server: Server) -> None:
    address = "http://127.0.0.1:1"
    async with Cluster(Credentials(address, ssl.create_default_context()), Metrics()) as cluster:
        with pytest.raises(Unreachable, match="GET /api/v1/namespaces/n/pods/p"):
            await cluster.get("Pod", "n", "p")


@pytest.mark.parametrize(
    ("status", "reason", "error"),
    [
        (404, "NotFound", NotFound),
        (409, "AlreadyExists", AlreadyExists),
        (409, "Conflict", Conflict),
        (422, "Invalid", Refused),
        (403, "Forbidden", Refused),
    ],
)
async def test_a_no_is_told_apart_and_not_asked_again(server: Server, status, reason, error) -> None:
    server.answers = [says(status, reason)]
    async with connect(server) as cluster:
        with pytest.raises(error, match=f"because {reason}"):
            await cluster.create(POD)
    assert len(server.requests) == 1


async def test_a_token_that_was_rotated_is_read_after_a_401(server: Server, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")

    def rotate(_: web.Request) -> tuple[int, dict[str, Any]]:
        token.write_text("new\n")
        return 401, {}

    server.answers = [says(200), rotate, says(200)]
    async with connect(server, token=lambda: f"Bearer {token.read_text().strip()}") as cluster:
        await cluster.get("Pod", "n", "p")
        await cluster.get("Pod", "n", "p")
    assert [request[2] for request in server.requests] == ["Bearer old", "Bearer old", "Bearer new"]


async def test_an_operator_without_its_definitions_says_which_are_missing(server: Server) -> None:
    one, both = [{"name": "trainingruns"}], [{"name": "trainingruns"}, {"name": "learnerunits"}]
    server.answers = [says(404, "NotFound"), says(200, resources=one), says(200, resources=both)]
    async with connect(server) as cluster:
        for missing in ("learnerunits, trainingruns", "learnerunits"):
            with pytest.raises(Unreachable, match=f"does not serve {missing}; apply crds/ first"):
                await cluster.check_served()
        await cluster.check_served()


def comes_up_after(seconds: float) -> Callable[[], Awaitable[float]]:
    """An API server that cannot be reached before then; its answer is the time."""

    async def ask() -> float:
        now = asyncio.get_running_loop().time()
        if now < seconds:
            raise Unreachable("GET /version: nobody answers")
        return now

    return ask


def test_an_api_server_that_comes_up_later_than_the_operator_is_waited_for() -> None:
    assert 8 <= leap(wait_for_api(comes_up_after(8))) <= 9


def test_an_api_server_that_never_comes_up_ends_the_start_in_time_with_what_is_missing() -> None:
    async def ended() -> float:
        with pytest.raises(Unreachable, match="nobody answers"):
            await wait_for_api(comes_up_after(1e9))
        return asyncio.get_running_loop().time()

    assert START_SECONDS <= leap(ended()) <= START_SECONDS + 1

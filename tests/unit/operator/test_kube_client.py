"""Login and the client, against a small real HTTP server: tries again, gives up, tells errors apart."""

from __future__ import annotations

import asyncio
import datetime
import gc
import json
import re
import ssl
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientTimeout, web
from answering import answering
from leaping import leap

from atoll_operator import operator
from atoll_operator.certificates.authority import Authority
from atoll_operator.cluster import Cluster
from atoll_operator.kube import client, errors
from atoll_operator.kube.cache import Key
from atoll_operator.kube.events import Feed
from atoll_operator.kube.login import Credentials, load
from atoll_operator.kube.queue import START_SECONDS, WorkQueue, wait_for_api
from atoll_operator.metrics.process import Metrics
from atoll_operator.operator import App
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.settings import Settings

POD = {"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}}
PATH = "/api/v1/namespaces/n/pods"


class Server:
    """Answers what the test says and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: Iterator[tuple[int, dict[str, Any]]] = iter(())
        self.requests: list[str] = []
        self.tokens: list[str] = []
        self.headers: dict[str, str] = {}
        self.silent = False
        self.address = ""

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append(f"{request.method} {request.path}")
        self.tokens.append(request.headers.get("Authorization", ""))
        while self.silent:
            await asyncio.sleep(0.05)
        status, body = next(self.answers, (200, {}))
        return web.json_response(body, status=status, headers=self.headers if status >= 400 else {})

    def cluster(self, login: Callable[[], dict[str, str]] = dict, **options: Any) -> Cluster:
        return Cluster(Credentials(self.address, ssl.create_default_context(), login), Metrics(), **options)


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Server]:
    monkeypatch.setattr(client, "BACK_OFF_SECONDS", 0.001)
    one = Server()
    async with answering(one.handle) as one.address:
        yield one


def says(status: int, reason: str = "", **body: Any) -> tuple[int, dict[str, Any]]:
    return status, {"reason": reason, "message": f"because {reason}"} | body


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_a_busy_server_is_asked_again_and_given_up_in_the_end(server: Server, status: int) -> None:
    async with server.cluster() as cluster:
        server.answers = iter([says(status), says(status), says(200, name="x")])
        assert (await cluster.get("Pod", "n", "p"))["name"] == "x"
        assert len(server.requests) == 3
        server.answers = iter([says(status, "Broken")] * 10)
        with pytest.raises(errors.Unreachable, match="because Broken"):
            await cluster.get("Pod", "n", "p")
        assert len(server.requests) == 3 + client.TRIES
    server.address = "http://127.0.0.1:1"
    async with server.cluster() as cluster:
        with pytest.raises(errors.Unreachable, match=f"GET {PATH}/p"):
            await cluster.get("Pod", "n", "p")


@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_asks_for_patience_gets_it_within_bounds(server: Server, status: int) -> None:
    server.answers, server.headers = iter([says(status)]), {"Retry-After": "3600"}
    async with server.cluster(time_out=ClientTimeout(total=1)) as cluster:
        began = asyncio.get_running_loop().time()
        await cluster.get("Pod", "n", "p")
    assert 1 <= asyncio.get_running_loop().time() - began < 5


async def test_a_no_is_told_apart_and_not_asked_again(server: Server) -> None:
    """By its status, but for refusals to which webhooks, policies or the API server itself give any status."""
    table = [
        (404, "NotFound", "no p", errors.NotFound), (409, "AlreadyExists", "a p", errors.AlreadyExists),
        (409, "Conflict", "it was modified", errors.Conflict), (422, "Invalid", "spec.x", errors.Refused),
        (403, "Forbidden", "exceeded quota", errors.Refused),
        (500, "", "failed to create typed patch object (n/p): .spec.x: field not declared", errors.Refused),
        (500, "InternalError", 'Internal error occurred: failed calling webhook "w": it broke', errors.Refused),
        (401, "Unauthorized", 'admission webhook "w" denied the request: no', errors.Refused),
        (413, "", "pods \"p\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
         errors.Refused),
    ]  # fmt: skip
    server.answers = iter([says(status, reason, message=message) for status, reason, message, _ in table])
    async with server.cluster() as cluster:
        for _, _, message, error in table:
            with pytest.raises(error, match=re.escape(message)):
                await cluster.create(POD)
    assert len(server.requests) == len(table)


async def test_a_create_is_answered_also_if_a_webhook_hangs_for_its_whole_time(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes allows webhooks 30 s, and creates 34 s."""
    assert (client.CREATE_TIME_OUT.total or 0) > 34
    short = ClientTimeout(total=0.1)
    monkeypatch.setattr(client, "TIME_OUT", short)
    async with (
        server.cluster(time_out=short) as cluster,
        server.cluster(time_out=ClientTimeout(total=0.05)) as quick,
    ):
        for write, request in ((cluster.create, f"POST {PATH}"), (cluster.apply, f"PATCH {PATH}/p")):
            server.silent, server.requests = True, []
            server.answers = iter([says(500, message='failed calling webhook "w": deadline')])
            asyncio.get_running_loop().call_later(0.3, setattr, server, "silent", False)
            with pytest.raises(errors.Refused, match='failed calling webhook "w"'):
                await write(POD)
            assert server.requests == [request]
        server.silent = True
        with pytest.raises(errors.Unreachable):
            await asyncio.wait_for(quick.create(POD), 20)  # as for the Lease
        server.silent = False


async def test_nothing_is_written_when_another_operator_may_lead_by_now(server: Server) -> None:
    leads = True
    async with server.cluster(may_write=lambda: leads) as cluster:
        await cluster.create(POD)

        def lose() -> Iterator[tuple[int, dict[str, Any]]]:
            nonlocal leads
            leads = False
            yield 503, {}

        server.answers = lose()
        with pytest.raises(errors.NotLeading, match=f"POST {PATH}"):
            await cluster.create(POD)
        await cluster.get("Pod", "n", "p")
    assert server.requests == [f"POST {PATH}", f"POST {PATH}", f"GET {PATH}/p"]


@pytest.mark.parametrize(
    ("awaits", "alive"), [("an answer", True), ("its next try", True), ("nothing", False)]
)
async def test_an_operator_is_alive_while_its_pass_awaits_an_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch, awaits: str, alive: bool
) -> None:
    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(client, "BACK_OFF_SECONDS", 5.0)
    access = Credentials(server.address, ssl.create_default_context())
    app = App(Settings(runtime_image="i", stuck_seconds=1), access)
    async with app._cluster:
        server.silent, server.answers = awaits == "an answer", iter([says(503)])
        handle = never if awaits == "nothing" else lambda _: app._cluster.get("Pod", "n", "p")
        queue = app._dispatcher.queue = WorkQueue(handle)
        queue.add(Key("Pod", "n", "p"))
        working = asyncio.create_task(queue.run())
        await asyncio.sleep(1.1)
        assert app._alive()[0] is alive
        working.cancel()


async def test_what_the_first_lists_brought_is_not_walked_over_by_the_collector(server: Server) -> None:
    """A walk over 11,520 pods in the midst of a pass took it six times as long as its plan."""
    app = App(Settings(runtime_image="i"), Credentials(server.address, ssl.create_default_context()))
    app._inventory.put("Pod", {"metadata": {**POD["metadata"], "uid": "u", "resourceVersion": "1"}})
    held, feed = asyncio.Event(), Feed(app._cluster, [], [], app._inventory, print, print)
    feed.filled.set()

    async def work(_: Feed) -> None:
        held.set()

    app._work = work  # type: ignore[method-assign]
    entry = app._inventory.get(Key("Pod", "n", "p"))
    assert any(each is entry for each in gc.get_objects())
    try:
        await app._lead(feed)
        assert held.is_set() and not any(each is entry for each in gc.get_objects())
    finally:
        gc.unfreeze()


def test_garbage_that_has_lived_for_long_is_collected_once_a_minute() -> None:
    cycle = Server()
    cycle.headers[""], seen = cycle, weakref.ref(cycle)
    del cycle
    gc.disable()
    with pytest.raises(TimeoutError):
        leap(asyncio.wait_for(operator._collect(), operator.COLLECT_SECONDS + 1))
    gc.enable()
    assert seen() is None


async def test_the_token_is_read_again_for_each_try(server: Server) -> None:
    tokens = iter(["Bearer old", "Bearer new"])
    server.answers = iter([says(401)])
    async with server.cluster(lambda: {"Authorization": next(tokens)}) as cluster:
        await cluster.get("Pod", "n", "p")
    assert server.tokens == ["Bearer old", "Bearer new"]


def page(*names: str, more: bool = False) -> tuple[int, dict[str, Any]]:
    """Pods of the unit u; `more`: there is another page."""
    labels = {"atoll.dev/run": "r", "atoll.dev/unit": "u"}
    known = {"namespace": "n", "resourceVersion": "5", "labels": labels}
    pods = [{"metadata": {"name": name, "uid": name, **known}} for name in names]
    metadata = {"resourceVersion": "7", "continue": "2" if more else ""}
    return says(200, metadata=metadata, items=pods or None)


async def test_a_list_is_read_page_by_page(server: Server) -> None:
    server.answers = iter([page("a", "b", more=True), page()])
    async with server.cluster() as cluster:
        bodies, version = await cluster.list("Pod", "n")
    assert [body["metadata"]["name"] for body in bodies] == ["a", "b"] and version == 7
    assert "labels" not in bodies[0]["metadata"]


async def test_pods_of_a_page_are_known_when_the_next_page_is_asked_for(server: Server) -> None:
    """The bodies of a large unit's pods take more memory than the operator has."""
    inventory, known = Inventory(), list[list[str]]()
    for name in ("a", "gone"):
        inventory.put("Pod", page(name)[1]["items"][0])

    def answers() -> Iterator[tuple[int, dict[str, Any]]]:
        for each in (page("b", "c", more=True), page("a", more=True), page()):
            known.append(sorted(key.name for key in inventory.keys("Pod")))
            yield each

    server.answers = answers()
    async with server.cluster() as cluster:
        await inventory.replace_pods(Key("LearnerUnit", "n", "u"), cluster.pages("Pod", "n"))
    assert known == [["a", "gone"], *[["a", "b", "c", "gone"]] * 2]
    assert {key.name for key in inventory.keys("Pod")} == {"a", "b", "c"}


async def test_an_operator_without_its_definitions_says_which_are_missing(server: Server) -> None:
    served = [[{"name": "trainingruns"}], [{"name": "trainingruns"}, {"name": "learnerunits"}]]
    server.answers = iter([says(404, "NotFound"), *(says(200, resources=each) for each in served)])
    async with server.cluster() as cluster:
        for missing in ("learnerunits, trainingruns", "learnerunits"):
            with pytest.raises(errors.Unreachable, match=f"does not serve {missing}; apply crds/ first"):
                await cluster.check_served()
        await cluster.check_served()


@pytest.mark.parametrize(("up_after", "ends"), [(8.0, 8.0), (1e9, START_SECONDS)], ids=["late", "never"])
def test_an_api_server_that_comes_up_late_is_waited_for_within_bounds(up_after: float, ends: float) -> None:
    async def ask() -> None:
        if asyncio.get_running_loop().time() < up_after:
            raise errors.Unreachable("nobody answers")

    async def ended() -> tuple[float, bool]:
        try:
            await wait_for_api(ask)
        except errors.Unreachable:
            return asyncio.get_running_loop().time(), False
        return asyncio.get_running_loop().time(), True

    time, up = leap(ended())
    assert ends <= time <= ends + 1 and up == (up_after < START_SECONDS)


API = {"apiVersion": "client.authentication.k8s.io/v1"}
SAID = json.dumps({**API, "kind": "ExecCredential", "status": {"token": "x1"}})
EXEC = {**API, "command": "echo", "args": [SAID], "interactiveMode": "Never"}


def kubeconfig(folder: Path, user: dict[str, object], context: str = "here") -> dict[str, str]:
    content = {
        "apiVersion": "v1", "kind": "Config", "current-context": context, "users": [{"name": "u", "user": user}],
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1/"}}],
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
    }  # fmt: skip
    (folder / "config").write_text(json.dumps(content))
    return {"KUBECONFIG": str(folder / "config")}


def test_a_kubeconfig_logs_in_or_is_an_error_that_names_what_is_missing(tmp_path: Path) -> None:
    for user, token in (({"token": "secret"}, "Bearer secret"), ({"exec": EXEC}, "Bearer x1")):
        access = load(kubeconfig(tmp_path, user))
        assert (access.server, access.headers()) == ("https://127.0.0.1:1", {"Authorization": token})
    with pytest.raises(errors.CredentialsError, match="nowhere"):
        load({"KUBECONFIG": str(tmp_path / "nowhere")})
    with pytest.raises(errors.CredentialsError, match="there"):
        load(kubeconfig(tmp_path, {"token": "secret"}, context="there"))


def test_a_pod_logs_in_with_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = "kubernetes.config.incluster_config"
    environment = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    (tmp_path / "token").write_text("one\n")
    authority = Authority.new("r", datetime.datetime.now(datetime.UTC))
    (tmp_path / "ca.crt").write_bytes(authority.pair.certificate)
    monkeypatch.setattr(f"{loader}.InClusterConfigLoader.__init__.__defaults__", (True, environment))
    monkeypatch.setattr(f"{loader}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{loader}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    access = load({})
    assert access.server == "https://kubernetes.default.svc"
    assert access.headers() == {"Authorization": "bearer one"}

"""A way to the API server that counts an operator's writes and kills it at one of them.

An HTTPS server for each operator process, in front of the real API server; watches stream through. Writes of leases
are not counted: they come by the clock, and nothing of a run depends on them.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from atoll_local.pki import Pair
from atoll_operator.kube.client import APPLY, MERGE, STRATEGIC

T = TypeVar("T")
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
NOT_PASSED_ON = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
"""Headers of one connection."""
METHODS = {"POST": "create", "PUT": "replace"}
PATCHES = {APPLY: "apply", MERGE: "annotate", STRATEGIC: "release"}
"""The operator's words for them, by method and content type."""
START_SECONDS = 20
When = Literal["before", "after"]
"""The write at which an operator dies never arrives, or is done and never answered."""


@dataclass(slots=True)
class Fault:
    """The death of an operator at the n-th write from now on, from 1; 0 only counts."""

    at: int
    when: When
    kill: Callable[[], None]
    """Called on the proxy's thread; must not wait."""
    sites: frozenset[str] = frozenset()
    """Where it strikes whatever the number."""
    seen: int = 0
    write: str = ""
    """Site and path at which it struck; empty before."""
    _off: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self, write: str) -> bool:
        """Counts a write; whether this is the one."""
        with self._lock:
            if self._off or self.write:
                return False
            self.seen += 1
            if self.seen != self.at and write.partition(":")[0] not in self.sites:
                return False
            self.write = write
            return True

    def call_off(self) -> bool:
        """Whether it is too late for that."""
        with self._lock:
            self._off = True
            return bool(self.write)


class Gate:
    """One operator process's way."""

    def __init__(self, session: aiohttp.ClientSession, server: str) -> None:
        self._session = session
        self._server = server
        self.fault: Fault | None = None

    async def carry(self, request: web.BaseRequest) -> web.StreamResponse:
        """One request there, and its answer back."""
        fault = self.fault
        if fault is not None and fault.write:
            return _cut(request)  # what a dead process had sent is not on its way any more
        write = request.method in WRITES and "/leases" not in request.path
        strikes = write and fault is not None and fault.strikes(await _told(request))
        if fault is not None and strikes and fault.when == "before":
            fault.kill()
            return _cut(request)
        async with self._session.request(
            request.method,
            URL(self._server + request.raw_path, encoded=True),
            headers=_passed_on(request.headers),
            data=await request.read() or None,
        ) as answer:
            if fault is not None and strikes:
                await answer.read()
                fault.kill()
                return _cut(request)
            response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response


class Proxy:
    """One thread with all gates.

    Args:
        pair: of a server at 127.0.0.1, from the authority that `kubeconfig` names.
        kubeconfig: of the operator, straight to the API server.
        authority: PEM, of the API server.
    """

    def __init__(self, pair: Pair, kubeconfig: Path, authority: str) -> None:
        self._kubeconfig = kubeconfig.read_text()
        self._server: str = yaml.safe_load(self._kubeconfig)["clusters"][0]["cluster"]["server"]
        self._near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._near.load_cert_chain(pair.cert, pair.key)
        self._far = ssl.create_default_context(cadata=authority)
        self._runners: list[web.ServerRunner] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="crash proxy")
        self._thread.start()
        self._session = self._wait(self._open())

    def gate(self, kubeconfig: Path) -> Gate:
        """A new one; writes the kubeconfig of the process that is to use it."""
        gate = Gate(self._session, self._server)
        port = self._wait(self._listen(gate))
        kubeconfig.write_text(self._kubeconfig.replace(self._server, f"https://127.0.0.1:{port}"))
        return gate

    def close(self) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    async def _open(self) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, ssl=self._far)
        time_out = aiohttp.ClientTimeout(total=None, connect=START_SECONDS)
        return aiohttp.ClientSession(connector=connector, timeout=time_out, auto_decompress=False)

    async def _listen(self, gate: Gate) -> int:
        runner = web.ServerRunner(
            web.Server(gate.carry, access_log=None), handler_cancellation=True, shutdown_timeout=0.1
        )
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._near).start()
        self._runners.append(runner)
        return int(runner.addresses[0][1])

    async def _close(self) -> None:
        for runner in self._runners:
            await runner.cleanup()
        await self._session.close()
        await asyncio.sleep(0.1)  # connections over TLS end after their session

    def _wait(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(START_SECONDS)


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED_ON}


async def _told(request: web.BaseRequest) -> str:
    body = await request.read()
    return f"{site(request.method, request.path, request.content_type, body)}: {request.path}"


def site(method: str, path: str, content_type: str, body: bytes) -> str:
    """Where the operator makes such a write: the method of its Cluster, and the plural of the kind."""
    plural, *rest = path.partition("/namespaces/")[2].split("/")[1:]
    if method == "DELETE":
        grace = json.loads(body).get("gracePeriodSeconds")
        how = "" if grace is None else " with grace" if grace else " at once"
        return f"delete {plural}{how}"
    if "status" in rest[1:]:
        return f"write_status {plural}"
    return f"{METHODS.get(method) or PATCHES[content_type]} {plural}"


def _cut(request: web.BaseRequest) -> web.Response:
    """The connection is gone; the answer goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()

"""A proxy to an API server that holds requests."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web
from answering import LoopThread, answering
from yarl import URL

from atoll_local.pki import Pair

HOP_HEADERS = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
LOOK_SECONDS = 0.05
START_SECONDS = 20


def nothing(request: web.Request) -> bool:
    return False


def end_to_end(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_HEADERS}


class HoldingGate:
    """An HTTPS proxy in its own thread. The test may set the public attributes.

    Args:
        pair: certificate and key for a server at 127.0.0.1, from the authority in `kubeconfig`.
        kubeconfig: an operator's kubeconfig for the API server itself.
        authority: the API server's authority, PEM.
        through: path at which the kubeconfig for this proxy is written.
    """

    def __init__(self, pair: Pair, kubeconfig: Path, authority: str, through: Path) -> None:
        self.holds = nothing
        """Requests for which this is true wait until it is false. They arrive even if the client is gone by then."""
        self.held = 0
        """Held requests that were not answered yet."""
        text = kubeconfig.read_text()
        self._server: str = yaml.safe_load(text)["clusters"][0]["cluster"]["server"]
        self._session: aiohttp.ClientSession
        self._thread = LoopThread("gate")
        address = self._thread.enter(self._open(pair, authority))
        through.write_text(text.replace(self._server, address))
        self.kubeconfig = through

    def close(self) -> None:
        self._thread.close()

    @asynccontextmanager
    async def _open(self, pair: Pair, authority: str) -> AsyncIterator[str]:
        near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        near.load_cert_chain(pair.cert, pair.key)
        far = aiohttp.TCPConnector(limit=0, ssl=ssl.create_default_context(cadata=authority))
        time_out = aiohttp.ClientTimeout(total=None, connect=START_SECONDS)
        session = aiohttp.ClientSession(connector=far, timeout=time_out, auto_decompress=False)
        async with session as self._session, answering(self._carry, near) as address:
            yield address

    async def _carry(self, request: web.Request) -> web.StreamResponse:
        body, held = await request.read() or None, self.holds(request)
        self.held += held
        try:
            while self.holds(request):
                await asyncio.sleep(LOOK_SECONDS)
            return await self._pass_on(request, body)
        finally:
            self.held -= held

    async def _pass_on(self, request: web.Request, body: bytes | None) -> web.StreamResponse:
        headers = end_to_end(request.headers)
        url = URL(self._server + request.raw_path, encoded=True)
        response = web.StreamResponse()
        try:
            async with self._session.request(request.method, url, headers=headers, data=body) as answer:
                response.set_status(answer.status)
                response.headers.update(end_to_end(answer.headers))
                await response.prepare(request)
                async for part in answer.content.iter_any():
                    await response.write(part)
                return response
        except (aiohttp.ClientError, OSError):  # either side is down
            if request.transport is not None:
                request.transport.abort()
            return response

"""The operator's client, with the API server in the same process."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, NoReturn

from memory_apiserver import Fault, Object, Server

from atoll_operator.cluster import Cluster
from atoll_operator.kube.client import JSON
from atoll_operator.kube.errors import Unreachable
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics

CREDENTIALS = Credentials("http://nowhere", ssl.create_default_context())


class MemoryCluster(Cluster):
    """Its requests are late, and some are lost, as the server's weather says."""

    def __init__(self, server: Server, metrics: Metrics | None = None) -> None:
        super().__init__(CREDENTIALS, metrics or Metrics())
        self.server = server
        self.writes = 0
        """Number of writes so far."""
        self.dead = False
        """Whether the process of this client was killed. Then none of its requests reaches the server any more."""

    async def _call(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        parameters: Any = None,
        content_type: str = JSON,
        accept: str = JSON,
    ) -> Object:
        server, weather = self.server, self.server.weather
        async with self._slots:
            await self._travel(weather.lost_requests, "lost on its way")
            fault, writes = server.fault, method != "GET"
            self.writes += writes
            strikes = writes and fault is not None and fault.strikes(method, path)
            if fault is not None and strikes and fault.when == "before":
                self._die(fault)
            answer = server.answer(method, path, body or {}, parameters, content_type)
            if fault is not None and strikes:
                self._die(fault)
            await self._travel(weather.lost_answers if writes else 0.0, "its answer is lost")
            return answer

    async def _travel(self, lost: float, how: str) -> None:
        await asyncio.sleep(self.server.random.uniform(0, self.server.weather.request_seconds))
        if self.dead:
            raise asyncio.CancelledError
        if self.server.random.random() < lost:
            raise Unreachable(how)

    def _die(self, fault: Fault) -> NoReturn:
        fault.kill()
        raise asyncio.CancelledError

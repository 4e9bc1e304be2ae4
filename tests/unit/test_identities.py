"""The Secrets of a run against a small real HTTP server: what is right is asked for once."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from answering import answering

from atoll_operator.cluster import Cluster
from atoll_operator.credentials import Credentials
from atoll_operator.errors import Refused
from atoll_operator.identities import Identities
from atoll_operator.metrics import Metrics
from atoll_operator.store import Store

UNITS = {f"r-one-{number}": "" for number in range(6)}


class Secrets:
    """An API server that has Secrets alone."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self._version = 0

    async def handle(self, request: web.Request) -> web.Response:
        name = request.path.rpartition("/")[2]
        if request.method == "GET":
            self.asked.append(name)
            if name not in self.bodies:
                return web.json_response({"reason": "NotFound", "message": name}, status=404)
            return web.json_response(self.bodies[name])
        body = await request.json()
        self._version += 1
        body["metadata"] |= {"resourceVersion": str(self._version), "uid": body["metadata"]["name"]}
        return web.json_response(self.bodies.setdefault(body["metadata"]["name"], body))


@pytest.fixture
async def world() -> AsyncIterator[tuple[Secrets, Identities]]:
    secrets = Secrets()
    async with answering(secrets.handle) as address:
        access = Credentials(address, ssl.create_default_context())
        async with Cluster(access, Metrics()) as cluster:
            yield secrets, Identities(cluster, Store())


async def test_a_secret_of_somebody_else_has_no_other_asked_for_again(
    world: tuple[Secrets, Identities],
) -> None:
    secrets, identities = world
    foreign = {"name": "r-one-3-tls", "namespace": "ns", "uid": "x", "resourceVersion": "1"}
    secrets.bodies["r-one-3-tls"] = {"kind": "Secret", "metadata": foreign}
    for asked in (len(UNITS) + 2, 1, 1):
        secrets.asked.clear()
        with pytest.raises(Refused, match="'r-one-3-tls' is not the TrainingRun's"):
            await identities.ensure("ns", "r", "run", 1, UNITS)
        assert len(secrets.asked) == asked
    del secrets.bodies["r-one-3-tls"]
    await identities.ensure("ns", "r", "run", 1, UNITS)
    secrets.asked.clear()
    await identities.ensure("ns", "r", "run", 1, UNITS)
    assert secrets.asked == []

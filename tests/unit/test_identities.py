"""The Secrets of a run against a small real HTTP server: what is right is asked for once."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from answering import answering

from atoll_operator.certificates.secrets import Identities
from atoll_operator.cluster import Cluster
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import Refused
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.inventory import Inventory

UNITS = {f"r-one-{number}": "" for number in range(6)}


class Secrets:
    """An API server that has Secrets alone."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.under_way = self.most_at_once = 0
        self._version = 0

    async def handle(self, request: web.Request) -> web.Response:
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
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
            yield secrets, Identities(cluster, Inventory().cache)


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


async def test_a_review_looks_for_all_secrets_of_one_run_and_leaves_connections_to_others(
    world: tuple[Secrets, Identities],
) -> None:
    secrets, identities = world
    many = {f"r-one-{number}": "" for number in range(5 * AT_ONCE)}

    async def asked() -> Counter[str]:
        secrets.asked.clear()
        await identities.ensure("ns", "r", "run", 1, many)
        await identities.ensure("ns", "q", "other", 1, {})
        return Counter(name[0] for name in secrets.asked)

    assert await asked() == {"r": len(many) + 2, "q": 2}
    identities.review("run")
    assert await asked() == {"r": len(many) + 2}
    assert await asked() == {}
    assert secrets.most_at_once <= AT_ONCE

"""The Secrets of a run against a small real HTTP server: a correct one is read once."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from answering import answering

from atoll_operator.certificates.members import RunOwner, members
from atoll_operator.certificates.secrets import Certificates
from atoll_operator.cluster import Cluster
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import Refused
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.inventory import Inventory

RUN = RunOwner("ns", "r", "run")
UNITS = {f"r-one-{number}": "" for number in range(6)}


class Secrets:
    """An API server that has only Secrets."""

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
async def world() -> AsyncIterator[tuple[Secrets, Certificates]]:
    secrets = Secrets()
    async with answering(secrets.handle) as address:
        access = Credentials(address, ssl.create_default_context())
        async with Cluster(access, Metrics()) as cluster:
            yield secrets, Certificates(cluster, Inventory().cache)


async def test_secret_of_another_owner_does_not_make_others_be_read_again(
    world: tuple[Secrets, Certificates],
) -> None:
    secrets, certificates = world
    everybody = members(RUN, 1, UNITS, False)
    foreign = {"name": "r-one-3-tls", "namespace": "ns", "uid": "x", "resourceVersion": "1"}
    secrets.bodies["r-one-3-tls"] = {"kind": "Secret", "metadata": foreign}
    for asked in (len(UNITS) + 2, 1, 1):
        secrets.asked.clear()
        with pytest.raises(Refused, match="'r-one-3-tls' is not the TrainingRun's"):
            await certificates.ensure(RUN, everybody)
        assert len(secrets.asked) == asked
    del secrets.bodies["r-one-3-tls"]
    await certificates.ensure(RUN, everybody)
    secrets.asked.clear()
    await certificates.ensure(RUN, everybody)
    assert secrets.asked == []


async def test_review_reads_all_secrets_of_one_run_and_leaves_connections_to_others(
    world: tuple[Secrets, Certificates],
) -> None:
    secrets, certificates = world
    many = members(RUN, 1, {f"r-one-{number}": "" for number in range(5 * AT_ONCE)}, False)
    other = RunOwner("ns", "q", "other")

    async def asked() -> Counter[str]:
        secrets.asked.clear()
        await certificates.ensure(RUN, many)
        await certificates.ensure(other, members(other, 1, {}, False))
        return Counter(name[0] for name in secrets.asked)

    assert await asked() == {"r": len(many) + 1, "q": 2}
    certificates.review("run")
    assert await asked() == {"r": len(many) + 1}
    assert await asked() == {}
    assert secrets.most_at_once <= AT_ONCE

"""The Secrets of a run against a small real HTTP server: each is read once a day, and again when it changed."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from answering import answering

from atoll_operator.certificates.members import RunOwner, members
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.cluster import Cluster
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import Refused
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.inventory import Inventory

RUN = RunOwner("ns", "r", "run")
NOW = datetime.datetime(2026, 11, 24, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


class Secrets:
    """An API server that has only Secrets, and a run's certificates."""

    def __init__(self) -> None:
        self.bodies: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[str, str]] = []
        """Method and name of each request."""
        self.under_way = self.most_at_once = 0
        self._version = 0
        self.certificates: RunCertificates

    async def handle(self, request: web.Request) -> web.Response:
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        await asyncio.sleep(0.001)
        self.under_way -= 1
        body = {} if request.method == "GET" else await request.json()
        name = body["metadata"]["name"] if body else request.path.rpartition("/")[2]
        self.asked.append((request.method, name))
        if request.method == "GET" and name not in self.bodies:
            return web.json_response({"reason": "NotFound", "message": name}, status=404)
        if request.method == "POST" and name in self.bodies:
            return web.json_response({"reason": "AlreadyExists", "message": name}, status=409)
        if body:
            self._version += 1
            body["metadata"] |= {"resourceVersion": str(self._version), "uid": name}
            self.bodies[name] = body
        return web.json_response(self.bodies[name])

    async def ensure(self, units: int, now: datetime.datetime = NOW) -> list[tuple[str, str]]:
        """The requests that it took."""
        self.asked.clear()
        everybody = members(RUN, 1, {f"r-one-{number}": "" for number in range(units)}, False)
        await self.certificates.ensure(everybody, now)
        return list(self.asked)


@pytest.fixture
async def secrets() -> AsyncIterator[Secrets]:
    one = Secrets()
    async with answering(one.handle) as address:
        access = Credentials(address, ssl.create_default_context())
        async with Cluster(access, Metrics()) as cluster:
            one.certificates = RunCertificates(cluster, Inventory().cache, RUN)
            yield one


async def test_secret_of_another_owner_is_refused_and_does_not_make_others_be_read_again(
    secrets: Secrets,
) -> None:
    foreign = {"name": "r-one-3-tls", "namespace": "ns", "uid": "x", "resourceVersion": "1"}
    secrets.bodies["r-one-3-tls"] = {"kind": "Secret", "metadata": foreign}
    for _ in range(3):
        with pytest.raises(Refused, match="'r-one-3-tls' is not the TrainingRun's"):
            await secrets.ensure(6)
    assert secrets.asked == [("POST", "r-one-3-tls"), ("GET", "r-one-3-tls")]
    del secrets.bodies["r-one-3-tls"]
    assert await secrets.ensure(6) == [("POST", "r-one-3-tls")]
    assert await secrets.ensure(6) == []


async def test_secrets_are_created_without_a_read_and_each_is_read_again_once_a_day(secrets: Secrets) -> None:
    created = await secrets.ensure(5 * AT_ONCE)
    assert created[0] == ("POST", "r-ca") and {method for method, _ in created} == {"POST"}
    assert len(created) == 5 * AT_ONCE + 2 and secrets.most_at_once <= AT_ONCE
    assert await secrets.ensure(5 * AT_ONCE) == []
    assert await secrets.ensure(5 * AT_ONCE + 1) == [("POST", f"r-one-{5 * AT_ONCE}-tls")]
    again = await secrets.ensure(5 * AT_ONCE, NOW + DAY)
    assert sorted(again) == sorted(("GET", name) for _, name in created)
    assert await secrets.ensure(5 * AT_ONCE, NOW + DAY) == []


async def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left(secrets: Secrets) -> None:
    await secrets.ensure(1)
    assert "PATCH" not in dict(await secrets.ensure(1, NOW + 59 * DAY))
    renewed = [name for method, name in await secrets.ensure(1, NOW + 60 * DAY) if method == "PATCH"]
    assert sorted(renewed) == ["r-one-0-tls", "r-syncer-tls"]

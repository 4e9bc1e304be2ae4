"""Authorities and certificates of a run: who trusts whom, when they are renewed, and the Secrets that hold them."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pytest
from memory_apiserver import Server, Weather
from memory_client import MemoryCluster

from atoll_operator.certificates.authority import RunOwner, members
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.reconcilers.inventory import Inventory

RUN = RunOwner("ns", "r", "run")
NOW = datetime.datetime.now(datetime.UTC).replace(hour=12, minute=0, second=0, microsecond=0)
DAY, HOUR = datetime.timedelta(days=1), datetime.timedelta(hours=1)


class Secrets(MemoryCluster):
    """The client of an operator that keeps the certificates of a run of so many units."""

    def __init__(self) -> None:
        super().__init__(Server(random.Random(0), Weather(request_seconds=0.001)))
        self.asked: list[tuple[str, str]] = []
        """Method and name of each request."""
        self.under_way = self.most_at_once = 0
        self.certificates = RunCertificates(self, Inventory(), RUN)

    async def _call(self, method: str, path: str, body: Any = None, *more: Any, **options: Any) -> Any:
        name = body["metadata"]["name"] if body else path.rpartition("/")[2]
        self.asked.append((method, name))
        self.under_way += 1
        self.most_at_once = max(self.most_at_once, self.under_way)
        try:
            return await super()._call(method, path, body, *more, **options)
        finally:
            self.under_way -= 1

    async def ensure(
        self, units: int, now: datetime.datetime = NOW, shards: int = 1
    ) -> list[tuple[str, str]]:
        self.asked.clear()
        everybody = members(RUN, shards, {f"r-one-{number}": "" for number in range(units)})
        await self.certificates.ensure(everybody, now)
        return list(self.asked)


@pytest.fixture
def secrets() -> Secrets:
    return Secrets()


async def test_secrets_are_created_without_a_read_and_each_is_read_again_once_a_day(secrets: Secrets) -> None:
    created = await secrets.ensure(5 * AT_ONCE)
    assert created[0] == ("POST", "r-ca") and {method for method, _ in created} == {"POST"}
    assert len(created) == 5 * AT_ONCE + 2 and secrets.most_at_once <= AT_ONCE
    assert await secrets.ensure(5 * AT_ONCE) == []
    assert await secrets.ensure(5 * AT_ONCE + 1) == [("POST", f"r-one-{5 * AT_ONCE}-tls")]
    again = await secrets.ensure(5 * AT_ONCE, NOW + DAY)
    assert sorted(again) == sorted(("GET", name) for _, name in created)
    assert await secrets.ensure(5 * AT_ONCE, NOW + DAY) == []


async def test_a_syncer_of_another_number_of_shards_has_a_certificate_with_all_their_names(
    secrets: Secrets,
) -> None:
    await secrets.ensure(1)
    assert ("PATCH", "r-syncer-tls") in await secrets.ensure(1, shards=2)


async def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left(secrets: Secrets) -> None:
    await secrets.ensure(1)
    assert "PATCH" not in dict(await secrets.ensure(1, NOW + 59 * DAY))
    renewed = [name for method, name in await secrets.ensure(1, NOW + 60 * DAY) if method == "PATCH"]
    assert sorted(renewed) == ["r-one-0-tls", "r-syncer-tls"]


@pytest.mark.parametrize("before", [[], [NOW - HOUR]])
@pytest.mark.parametrize("ahead", [3 * HOUR, 61 * DAY])
async def test_a_certificate_that_a_fast_clock_has_made_is_made_anew_when_the_clock_is_right(
    secrets: Secrets, ahead: datetime.timedelta, before: list[datetime.datetime]
) -> None:
    for now in before:
        await secrets.ensure(0, now, shards=0)
    await secrets.ensure(1, NOW + ahead)
    renewed = [name for method, name in await secrets.ensure(1, NOW) if method == "PATCH"]
    assert sorted(renewed) == ["r-one-0-tls", "r-syncer-tls"]

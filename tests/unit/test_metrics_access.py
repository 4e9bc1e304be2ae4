"""Who may read the operator's metrics if the API server answers, is slow, or is away. A real API server answers in
tests/control/test_control_samples.py.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import pytest

from atoll_operator.kube.access import AT_ONCE, KEPT, KEPT_SECONDS, PathAccess
from atoll_operator.kube.client import ApiClient
from atoll_operator.kube.errors import Unreachable

READER, OTHER, FORGED = "Bearer reader", "Bearer other", "Bearer forged"


class Reviewer:
    """An API server that accepts all tokens except those that begin with `forged`, and lets all but `other` read."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers = asyncio.Event()
        self.answers.set()
        self.away = False

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        await self.answers.wait()
        if self.away:
            raise Unreachable("nobody answers")
        spec = body["spec"]
        if body["kind"] == "TokenReview":
            self.asked.append(spec["token"])
            user = {"username": spec["token"], "groups": ["g"]}
            return {
                "status": {} if spec["token"].startswith("forged") else {"authenticated": True, "user": user}
            }
        assert (spec["nonResourceAttributes"], spec["groups"]) == ({"path": "/metrics", "verb": "get"}, ["g"])
        return {"status": {"allowed": spec["user"] != "other"}}


@pytest.fixture
def reviewer() -> Reviewer:
    return Reviewer()


@pytest.fixture
def access(reviewer: Reviewer) -> PathAccess:
    return PathAccess(cast(ApiClient, reviewer), "/metrics")


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("", 401),
        ("Basic reader", 401),
        ("Bearer", 401),
        (FORGED, 401),
        (OTHER, 403),
        (READER, 200),
        ("bearer r", 200),
    ],
)
async def test_a_caller_needs_a_token_and_the_right(access: PathAccess, header: str, status: int) -> None:
    assert await access.status(header) == status


async def test_a_token_that_may_read_is_asked_for_once_a_minute(
    access: PathAccess, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    for seconds, asked in ((0, 1), (KEPT_SECONDS - 1, 1), (KEPT_SECONDS, 2)):
        monkeypatch.setattr(time, "monotonic", lambda at=now + seconds: at)
        assert await access.status(READER) == 200
        assert len(reviewer.asked) == asked


async def test_a_token_counts_on_while_the_api_server_is_away_or_hangs(
    access: PathAccess, reviewer: Reviewer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_operator.kube.access.KEPT_SECONDS", 0.0)
    monkeypatch.setattr("atoll_operator.kube.access.ASK_SECONDS", 0.01)
    assert await access.status(READER) == 200
    for away in (True, False):
        reviewer.away = away
        reviewer.answers.clear() if not away else reviewer.answers.set()
        assert (await access.status(READER), await access.status(OTHER)) == (200, 503)


async def test_others_cannot_drive_out_a_token_and_few_are_kept(
    access: PathAccess, reviewer: Reviewer
) -> None:
    await access.status(READER)
    for number in range(2 * KEPT):
        assert await access.status(f"{FORGED}{number}") == 401
    assert await access.status(READER) == 200 and reviewer.asked.count("reader") == 1
    for number in range(KEPT):
        await access.status(f"{READER}{number}")
    await access.status(READER)
    assert reviewer.asked.count("reader") == 2, "the oldest of them was dropped"


async def test_a_flood_waits_for_a_slow_api_server_in_a_short_line(
    access: PathAccess, reviewer: Reviewer
) -> None:
    await access.status(READER)
    reviewer.answers.clear()
    flood = [asyncio.create_task(access.status(f"{FORGED}{number}")) for number in range(AT_ONCE)]
    await asyncio.sleep(0)
    assert (await access.status(OTHER), await access.status(READER)) == (503, 200)
    reviewer.answers.set()
    assert await asyncio.gather(*flood) == [401] * AT_ONCE
    assert await access.status(OTHER) == 403

"""How long a key waits that the API server refuses: longer and longer, until something is new."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable

import pytest
from leaping import leap

from atoll_operator.kube.errors import NamespaceEnding, Retry, Unreachable, of_status
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.kube.logs import LOG
from atoll_operator.kube.queue import MAX_BACK_OFF_SECONDS, WorkQueue

REFUSAL = "exceeded quota: chips, requested: 4, used: 8, limited: 8"


class Refused:
    """A queue whose only key is refused at each of its tries, for so many seconds of its own clock."""

    def __init__(self, seconds: float, refuse: Callable[[int], str] = lambda count: REFUSAL) -> None:
        self.seconds = seconds
        self.refuse = refuse
        self.times: list[float] = []
        self.queue: WorkQueue[str] = WorkQueue(self.handle, workers=2)

    async def handle(self, key: str) -> None:
        self.times.append(asyncio.get_running_loop().time())
        if reason := self.refuse(len(self.times)):
            raise Retry(5.0, reason)

    async def work(self, *events: float) -> None:
        """With news of the key at these times."""
        loop = asyncio.get_running_loop()
        for event in (0.0, *events):
            loop.call_at(event, self.queue.add, "a")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.queue.run(), self.seconds)

    @property
    def waits(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.times)]


def test_the_waits_of_a_key_that_is_refused_again_and_again_grow_up_to_a_minute() -> None:
    refused = Refused(3600)
    leap(refused.work())
    for wait, longest in zip(refused.waits, (5, 10, 20, 40, 60, 60), strict=False):
        assert 0.8 * longest <= wait <= longest
    assert refused.waits[:4] == sorted(refused.waits[:4])
    assert max(refused.waits) <= MAX_BACK_OFF_SECONDS
    assert len(refused.times) < 3600 / (0.8 * MAX_BACK_OFF_SECONDS) + 6


def test_news_of_a_key_that_is_put_off_is_acted_on_at_once_and_its_next_tries_are_near_again() -> None:
    refused = Refused(1200)
    leap(refused.work(1000.0))
    at = refused.times.index(1000.0)
    assert refused.waits[at - 2] > 40
    assert refused.waits[at] <= 5 and refused.waits[at + 1] <= 10


def test_a_pass_that_succeeds_forgets_the_refusals_before_it() -> None:
    refused = Refused(1200, lambda count: "" if count == 6 else REFUSAL)
    leap(refused.work(600.0))
    assert refused.waits[4] > 40
    assert refused.times[6] == 600.0
    assert refused.waits[6] <= 5


def test_a_refusal_is_told_once_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    refused = Refused(600, lambda count: REFUSAL if count < 5 else "another reason")
    with caplog.at_level(logging.INFO):
        leap(refused.work(30.0))
    told = [record.fields for record in caplog.records if record.name == LOG.name]
    assert [(fields["object"], fields["error"]) for fields in told] == [
        ("a", REFUSAL),
        ("a", "another reason"),
    ]


def test_of_several_refusals_at_once_the_first_in_order_is_told_whichever_came_first() -> None:
    done: list[str] = []

    async def ends(name: str, seconds: float, refused: bool = True) -> None:
        await asyncio.sleep(seconds)
        done.append(name)
        if refused:
            raise ValueError(name)

    works = ends("a", 1, refused=False), ends("b", 5), ends("c", 2), ends("d", 9, refused=False)
    with pytest.raises(ValueError, match="b"):
        leap(gather_bounded(works))
    assert done == ["a", "c", "b", "d"]


def test_where_the_api_server_does_not_answer_nothing_more_is_begun() -> None:
    """Each try of a request takes seconds, and hundreds of them one after the other longer than a pass may."""
    done: list[str] = []

    async def ends(name: str, seconds: float, error: Exception | None = None) -> None:
        await asyncio.sleep(seconds)
        done.append(name)
        if error is not None:
            raise error

    works = ends("a", 1, ValueError("b")), ends("b", 5, Unreachable("503")), ends("c", 9), ends("d", 1)
    with pytest.raises(ValueError, match="b"):
        leap(gather_bounded(works, 2))
    assert done == ["a", "b", "c"], "what was under way may end"


def test_key_of_a_namespace_that_is_being_deleted_does_not_come_back() -> None:
    text = "unable to create new content in namespace ns because it is being terminated"
    ending = of_status(403, "Forbidden", text, "NamespaceTerminating")
    assert isinstance(ending, NamespaceEnding)
    assert not isinstance(of_status(403, "Forbidden", "no rights"), NamespaceEnding)
    seen: list[str] = []

    async def handle(key: str) -> None:
        seen.append(key)
        raise ending

    async def work() -> None:
        queue: WorkQueue[str] = WorkQueue(handle, workers=1)
        queue.add("r")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1000):
                await queue.run()

    leap(work())
    assert seen == ["r"]

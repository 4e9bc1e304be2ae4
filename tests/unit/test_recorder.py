"""Events that wait to be written: as many as are kept, and what is dropped is told of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, cast

import pytest
from leaping import leap

from atoll_operator.cluster import Cluster
from atoll_operator.kube import recorder as recorder_module
from atoll_operator.kube.logs import LOG
from atoll_operator.kube.recorder import Recorder
from atoll_operator.plan.conditions import Notice

UNIT = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "LearnerUnit",
    "metadata": {"name": "a", "namespace": "n", "uid": "u"},
}


class Events:
    """An API server that takes a while for each."""

    def __init__(self) -> None:
        self.written: list[str] = []

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.1)
        self.written.append(body["message"])
        return body


def test_events_beyond_those_that_may_wait_are_dropped_and_counted_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(recorder_module, "REMEMBERED", 4)
    events = Events()

    async def work() -> None:
        recorder = Recorder(cast(Cluster, events), "o")
        for waves in (7, 4):
            recorder.tell(
                UNIT, [Notice("Normal", "Healed", f"{waves}/{n}", f"{waves}/{n}") for n in range(waves)], 0.0
            )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(recorder.run(), 10)

    with caplog.at_level(logging.WARNING):
        leap(work())
    assert events.written == ["7/3", "7/4", "7/5", "7/6", "4/0", "4/1", "4/2", "4/3"]
    assert [record.fields for record in caplog.records if record.name == LOG.name] == [{"events": 3}]

"""A resync: everything is looked at once in its time, and little of it in any moment."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import Counter

import pytest
from leaping import leap

from atoll_operator.cluster import Cluster
from atoll_operator.controller import TURN_SECONDS, Controller
from atoll_operator.kube.cache import Key
from atoll_operator.kube.login import Credentials
from atoll_operator.metrics.process import Metrics
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.settings import Settings

UNITS = 400


class Passes(Controller):
    """A term whose passes are noted with their time, and do nothing."""

    def __init__(self, resync_seconds: float) -> None:
        self.times: dict[Key, list[float]] = {}
        store, metrics = Inventory(), Metrics()
        for kind, name in [("TrainingRun", "r"), *(("LearnerUnit", f"r-p-{n}") for n in range(UNITS))]:
            store.put(kind, _body(kind, name))
        settings = Settings(runtime_image="i", resync_seconds=resync_seconds)
        access = Credentials("http://127.0.0.1:1", ssl.create_default_context())
        super().__init__(settings, Cluster(access, metrics), store, metrics)

    async def _reconcile(self, key: Key) -> None:
        self.times.setdefault(key, []).append(asyncio.get_running_loop().time())

    async def work(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.run(()), seconds)


def _body(kind: str, name: str) -> dict:
    metadata = {"name": name, "namespace": "n", "uid": name, "resourceVersion": "1", "generation": 1}
    return {"kind": kind, "metadata": metadata, "spec": {"run": "r"}}


@pytest.mark.parametrize("seconds", [1.0, 10.0, 300.0])
def test_each_object_is_looked_at_once_in_the_time_of_a_resync(seconds: float) -> None:
    passes = Passes(seconds)
    leap(passes.work(2.0 * seconds + TURN_SECONDS / 4))
    assert len(passes.times) == 1 + UNITS
    for first, second in passes.times.values():
        assert first <= seconds + 1e-6 and second - first == pytest.approx(seconds)


def test_a_failure_never_waits_behind_a_resync_of_all_units() -> None:
    passes = Passes(300.0)
    leap(passes.work(300.0 + TURN_SECONDS / 4))
    in_turns = Counter(round(time / TURN_SECONDS) for times in passes.times.values() for time in times)
    assert max(in_turns.values()) < UNITS / 20
    assert min(in_turns) >= 0.8 * 300.0 / TURN_SECONDS, "most of the time an operator without news rests"

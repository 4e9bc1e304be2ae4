"""A whole world around the operator's own parts, in one process and in simulated time. Queue, watches, plans and writes
are those of the real operator. API server, scheduler, kubelets, controllers and syncer are played."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar
from unittest.mock import patch

from leaping import leap
from memory_apiserver import Object, Server, copied
from memory_client import MemoryCluster
from memory_cluster import PlayedCluster
from memory_syncer import PlayedSyncer, pollers
from objects import POOLS, RUN

from atoll_operator.api.group import LABEL_UNIT
from atoll_operator.kube.cache import Key
from atoll_operator.kube.events import Feed, Watch
from atoll_operator.metrics.process import Metrics
from atoll_operator.operator import RECONCILERS, WATCHES
from atoll_operator.reconcilers import controller
from atoll_operator.reconcilers.controller import Controller
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.wakeups import Dispatcher
from atoll_operator.settings import Settings

T = TypeVar("T")
BEGIN = 1_800_000_000.0
SPEC: Object = {
    **RUN["spec"],
    "pools": [{**POOLS[0], "units": 1}, {**POOLS[1], "units": 2}],
    "recovery": {"maxRestarts": 1000, "startupSeconds": 60, "hangSeconds": 120},
}


class World:
    """Use inside `leap`. Time is `BEGIN` plus the loop's time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.server = Server(self.random)
        self.cluster = PlayedCluster(self.server, self.random)
        self.syncer = PlayedSyncer(self.cluster)
        self._tasks: list[asyncio.Task[Any]] = []
        self._operator: list[asyncio.Task[Any]] = []
        self._dead: list[asyncio.Task[Any]] = []
        """Tasks of earlier operators."""
        self._client: MemoryCluster | None = None
        self.blind = False
        """Whether the operator may not watch nodes."""
        self.term: Controller

    def begin(self, **spec: Any) -> None:
        self.start()
        self.create_run(**spec)

    def create_run(self, **spec: Any) -> None:
        self.server.create({**RUN, "metadata": {"name": "r", "namespace": "ns"}, "spec": {**SPEC, **spec}})

    def start(self) -> None:
        self.operate()
        self._tasks.append(asyncio.create_task(self._play()))

    def operate(self, **settings: Any) -> None:
        """Start an operator with these settings. An operator that runs already dies."""
        self.stop()
        store, metrics = Inventory(), Metrics()
        self.metrics, own = metrics, Settings(**({"runtime_image": "i", "resync_seconds": 86_400} | settings))
        cluster = self._client = MemoryCluster(self.server, metrics)
        with patch.multiple(controller, **pollers(self.syncer)):
            term = self.term = Controller(own, cluster, store, metrics, RECONCILERS, lambda _: True)
        dispatcher = Dispatcher(store)
        dispatcher.queue = term.queue
        kinds = (*WATCHES, *([] if self.blind else [Watch("Node", cluster_scoped=True)]))
        feed = Feed(cluster, kinds, (), store, dispatcher.changed, dispatcher.listed)
        for watch in kinds:
            for body in self.server.every(watch.kind):
                feed.event(watch.kind, False, copied(body))
            told = self.server.watch(watch.kind, partial(_tell, feed, watch.kind))
            self._operator.append(asyncio.create_task(told))
        self._operator.append(asyncio.create_task(term.run()))

    def stop(self) -> None:
        if self._client is not None:
            self._client.dead = True
        for task in self._operator:
            task.cancel()
        self._dead += self._operator
        self._operator.clear()

    async def _play(self) -> None:
        while True:
            await asyncio.sleep(self.syncer.tick_seconds * self.random.uniform(0.5, 1.0))
            self.cluster.play()
            self.syncer.step += self.syncer.merges

    async def end(self) -> None:
        """Ends the world. Raises the error of a part that had ended before."""
        self.check()
        ends = (*self._tasks, *self._operator)
        for task in ends:
            task.cancel()
        await asyncio.gather(*ends, *self._dead, return_exceptions=True)

    def check(self) -> None:
        """Raises the error of a part of the world that has ended."""
        for task in (*self._tasks, *self._operator):
            if task.done():
                task.result()

    def pods(self, unit: str = "") -> list[Object]:
        """Pods of all learners, or of one unit, in order of names, without those that are being deleted."""
        found = (pod for pod in self.server.every("Pod") if "deletionTimestamp" not in pod["metadata"])
        units = ((pod, pod["metadata"]["labels"].get(LABEL_UNIT, "")) for pod in found)
        learners = (pod for pod, name in units if name and unit in ("", name))
        return sorted(learners, key=lambda pod: str(pod["metadata"]["name"]))

    def uids(self, unit: str) -> list[str]:
        return [pod["metadata"]["uid"] for pod in self.pods(unit)]

    def run(self) -> Object:
        return dict(self.server.get("TrainingRun", "r").get("status", {}))

    def unit(self, name: str) -> Object:
        """The unit's status; empty before the first one is written."""
        key = Key("LearnerUnit", "ns", name)
        return dict(self.server.objects.get(key, {}).get("status", {}))

    def condition(self, name: str, condition: str) -> tuple[str, str]:
        """Status and reason in the run `r` or in a unit; empty if there is no such condition."""
        status = self.run() if name == "r" else self.unit(name)
        found = {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", ())}
        return found.get(condition, ("", ""))

    async def until_condition(self, name: str, condition: str, *wanted: str) -> None:
        """Wait until this condition has this status and this reason, or one of them."""
        told = f"{condition} of {name} is {wanted}"
        await self.until(told, lambda: {*wanted} <= {*self.condition(name, condition)})

    async def until(self, what: str, check: Callable[[], Any], seconds: float = 600.0) -> Any:
        """Wait for the first true value of `check`. An AssertionError shows the world after `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while not (value := check()):
            self.check()
            shown = [(str(key), self.server.objects[key].get("status", {})) for key in self.planned()]
            assert asyncio.get_running_loop().time() < deadline, f"not within {seconds} s: {what}: {shown}"
            await asyncio.sleep(0.2)
        return value

    def planned(self) -> list[Key]:
        return [key for key in self.server.objects if key.kind in ("TrainingRun", "LearnerUnit")]

    def change(self, kind: str, name: str, **parts: Object) -> Object:
        """Somebody changes fields of these parts of an object, such as `spec` or `metadata`."""
        body = self.server.get(kind, name)
        return self.server.change(body | {part: body[part] | fields for part, fields in parts.items()})

    def change_run(self, **spec: Any) -> None:
        self.change("TrainingRun", "r", spec=spec)

    def told(self) -> str:
        """The messages of all Events."""
        return "\n".join(event["message"] for event in self.server.every("Event"))

    def resize(self, units: int) -> None:
        """Add `units` units to the second pool, which then has 0 to 3."""
        [one, two] = self.server.get("TrainingRun", "r")["spec"]["pools"]
        self.change_run(pools=[one, {**two, "units": min(max(two["units"] + units, 0), 3)}])


def played(seed: int, work: Callable[[World], Coroutine[None, None, T]]) -> T:
    """Return the result of `work` in a world with simulated time. The operator writes no log."""

    async def play() -> T:
        with clocks():
            world = World(seed)
            try:
                return await work(world)
            finally:
                await world.end()

    random.seed(seed)  # the operator's own jitter
    logging.disable(logging.CRITICAL)
    try:
        return leap(play())
    finally:
        logging.disable(logging.NOTSET)


def clocks() -> Any:
    """A context in which the functions of `time` return the loop's time."""
    loop = asyncio.get_running_loop()
    return patch.multiple(time, time=lambda: BEGIN + loop.time(), monotonic=loop.time)


def _tell(feed: Feed, kind: str, event: str, body: Object) -> None:
    """Pass an event of a watch to the feed."""
    feed.event(kind, event == "DELETED", body)

"""One run under one operator in its own namespace, and what the cases do to it."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import quote

from atoll_bench import cores
from atoll_bench.client import Object, fail, until, url
from atoll_bench.pods import Life, Pods, touched
from atoll_bench.process import Operator
from atoll_bench.shapes import RUN, Shape, training_run
from atoll_bench.statusserver import StatusServer
from atoll_bench.testbed import Testbed
from atoll_cli.errors import CommandError

IDLE_SECONDS = 60.0
PATIENCE_SECONDS = 480.0
"""Time limit for a creation or a heal. The scheduler retries an unschedulable pod after 300 s."""
SETTLE_SECONDS = 180.0
UNCHANGED_SECONDS = 30.0
"""The status of units is settled after this many seconds without a write."""
READY_SECONDS = 60.0
"""Time limit for the operator to poll the syncer, which it does at least every 13 s."""


@dataclass(frozen=True)
class Trial:
    bed: Testbed
    shape: Shape
    namespace: str
    pods: Pods
    server: StatusServer
    operator: Operator

    @property
    def _runs(self) -> str:
        return url("trainingruns", self.namespace)

    async def create(self) -> dict[str, float]:
        """Creates the run and waits until all pods run."""
        cut = await self.bed.watches_cut()
        before, start = self.bed.used(self.operator.pid), time.monotonic()
        serving = await self._begin()
        await self.pods.until_running(self.shape.pods, PATIENCE_SECONDS)
        used = cores.spent(before, self.bed.used(self.operator.pid))
        used["watches_cut"] = await self.bed.watches_cut() - cut
        await serving
        await self._ready()
        await self.bed.quiet(self.operator.pid)
        return {"all_running": self.pods.last_running() - start} | used

    async def _begin(self) -> asyncio.Task[None]:
        """Creates the run. Returns a task that waits for its certificate and then serves its status."""
        run = await self.bed.admin.call("POST", self._runs, training_run(self.shape))
        uid = run["metadata"]["uid"]
        return asyncio.create_task(self.server.serve(self.bed.admin, self.namespace, RUN, uid))

    async def _ready(self) -> None:
        """Waits until the run is ready, which means that the operator has polled its syncer. Raises `CommandError`
        after a minute."""

        async def ready() -> bool:
            run = await self.bed.admin.call("GET", f"{self._runs}/{RUN}")
            conditions = run.get("status", {}).get("conditions", [])
            return any((each["type"], each["status"]) == ("Ready", "True") for each in conditions)

        await until("the run is ready", ready, READY_SECONDS, interval=0.5)

    async def bodies(self) -> list[Object]:
        """The learners' pods as the API server has them, in the order of their creation."""
        items = await self._list("pods", "atoll.dev/component=learner")
        order = {life.name: life.created for life in self.pods.lives.values()}
        return sorted(items, key=lambda pod: order[pod["metadata"]["name"]])

    async def objects(self) -> dict[str, list[Object]]:
        """The objects that the operator made besides pods, by kind, in the order in which units need them."""
        kinds = ("secrets", "learnerunits", "services")
        return {kind: await self._list(kind, f"atoll.dev/run={RUN}") for kind in kinds}

    async def _list(self, kind: str, selector: str = "") -> list[Object]:
        path = f"{url(kind, self.namespace)}?labelSelector={quote(selector)}"
        items: list[Object] = (await self.bed.admin.call("GET", path))["items"]
        return items

    def victims(self, rng: random.Random) -> Iterator[Life]:
        """Yields random pods of distinct units, because a unit that fails twice within an hour has to wait."""
        pods = self.pods.living()
        units = sorted({life.unit for life in pods})
        for unit in rng.sample(units, len(units)):
            yield rng.choice([life for life in pods if life.unit == unit])

    async def heal(self, victims: Sequence[Life]) -> dict[str, float]:
        """Fails these pods and waits until all pods run again."""
        units = _next(victims)
        before, start = self.bed.used(self.operator.pid), time.monotonic()
        await asyncio.gather(*(fail(self.bed.admin, self.namespace, life.name) for life in victims))
        await healed(self.pods, self.shape, units)
        used = cores.spent(before, self.bed.used(self.operator.pid))
        await self.bed.quiet(self.operator.pid)
        ours, others = touched(self.pods.lives.values(), units, start)
        return times(self.pods, start) | used | {"touched": ours, "others_touched": others}

    async def absent(self, victim: Life, number: signal.Signals) -> float:
        """Stops the operator, fails a pod, and starts the operator. Returns the seconds from the start until the unit
        is healed."""
        self.operator.stop(number)
        await fail(self.bed.admin, self.namespace, victim.name)
        self.operator.start()
        await healed(self.pods, self.shape, _next([victim]))
        await self.bed.quiet(self.operator.pid)
        return times(self.pods, self.operator.started)["healed"]

    async def idle(self) -> dict[str, float]:
        """Measures a minute in which the operator only polls the syncer."""
        await self._settled()
        used = await self._minute()
        now, most = self.operator.memory()
        return used | {"memory": now / 2**20, "memory_peak": most / 2**20}

    async def training(self) -> dict[str, float]:
        """Measures a minute in which all units train and their figures change."""
        self.server.train()
        return {f"training_{name}": share for name, share in (await self._minute()).items()}

    async def weigh(self) -> dict[str, float]:
        """Creates the run and waits until all pods exist. Does not wait until they run, because kwok starts too few a
        second. Then another operator finds them, and is measured after a minute."""
        own, start = cores.used(self.operator.pid), time.monotonic()
        await self._begin()
        await self.pods.until("all are there", lambda: self.pods.alive == self.shape.pods, PATIENCE_SECONDS)
        found = {
            "all_created": time.monotonic() - start,
            "operator_cpu": cores.used(self.operator.pid) - own,
            "memory_peak": self.operator.memory()[1] / 2**20,
            "longest_plan": self.operator.longest_plan(),
        }
        self.operator.stop()
        self.operator.start()
        await self.operator.until_ready()
        await asyncio.sleep(IDLE_SECONDS)
        return found | {
            "next_memory_peak": self.operator.memory()[1] / 2**20,
            "next_longest_plan": self.operator.longest_plan(),
        }

    async def _minute(self) -> dict[str, float]:
        """CPU shares during a minute."""
        before, start = self.bed.used(self.operator.pid), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        used, seconds = cores.spent(before, self.bed.used(self.operator.pid)), time.monotonic() - start
        return {
            "cpu_share": used["operator_cpu"] / seconds,
            "api_server_cpu_share": used["kube_apiserver_cpu"] / seconds,
        }

    async def _settled(self) -> None:
        """Waits until the operator no longer writes the units' status. Raises `CommandError` after three minutes."""
        versions: list[str] = []

        async def unchanged() -> bool:
            before = list(versions)
            versions[:] = [unit["metadata"]["resourceVersion"] for unit in await self._list("learnerunits")]
            return versions == before

        await until(
            "the operator stops writing the units' status", unchanged, SETTLE_SECONDS, UNCHANGED_SECONDS
        )


@asynccontextmanager
async def namespace(bed: Testbed, shape: Shape, name: str) -> AsyncIterator[Pods]:
    """Creates a namespace on this shape's nodes and watches its pods."""
    await bed.prepare(shape, name)
    pods = Pods()
    watching = asyncio.create_task(pods.follow(bed.admin, name))
    try:
        await bed.quiet()
        yield pods
    finally:
        watching.cancel()
        await asyncio.wait([watching])


@asynccontextmanager
async def trial(bed: Testbed, shape: Shape, name: str) -> AsyncIterator[Trial]:
    """Starts an operator for a namespace of its own and waits until it is ready. Adds the end of its log to a
    `CommandError` of the body."""
    async with namespace(bed, shape, name) as pods, StatusServer(pods.units) as server:
        operator = bed.operator(name, server.port)
        operator.start()
        try:
            await operator.until_ready()
            await bed.quiet(operator.pid)
            yield Trial(bed, shape, name, pods, server, operator)
        except CommandError as error:
            raise CommandError(f"{error}; the operator's log ends with: {operator.tail()}") from error
        finally:
            operator.stop()


def _next(victims: Sequence[Life]) -> dict[str, int]:
    """The next incarnation of each of these pods' units."""
    return {life.unit: life.incarnation + 1 for life in victims}


async def healed(pods: Pods, shape: Shape, units: Mapping[str, int]) -> None:
    """Waits until all pods run and those of `units` have the given incarnation or a later one."""

    def done() -> bool:
        return pods.alive == pods.running == shape.pods and all(
            life.incarnation >= units.get(life.unit, 0) for life in pods.living()
        )

    await pods.until(
        f"the pods of {len(units)} units are of the next incarnation and run", done, PATIENCE_SECONDS
    )


def times(pods: Pods, since: float) -> dict[str, float]:
    """Seconds until the first and the last new pod was created, until all pods ran, and until the last pod that stayed
    got the new incarnation. `healed` is the later one of the last two."""
    told = [life.told - since for life in pods.lives.values() if life.created < since <= life.told]
    created = [life.created - since for life in pods.born_since(since)]
    return {
        "first_created": min(created),
        "last_created": max(created),
        "all_running": pods.last_running() - since,
        "last_told": max(told, default=0.0),
        "healed": max(pods.last_running() - since, *told, 0.0),
    }

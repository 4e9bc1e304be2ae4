"""The operator on a real API server with fake nodes, against what the cluster alone can do.

Cases: (a) a run from its creation until all pods run, (b) one pod fails, (c) fifty pods fail at once, (d) idle,
(e) a pod fails while the operator is down. Scheduler and controller-manager are the real ones, with their defaults;
kwok plays the kubelets. Slices are of 16 or 4 hosts, for none has 15. A time begins before the request that causes it
and ends when a watch tells of its end. The limit takes turns with the operator in the same cluster.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from atoll_bench import cores, limit
from atoll_bench.client import BenchError, Object, fail, pods_path
from atoll_bench.pods import Life, Pods, touched
from atoll_bench.process import Operator
from atoll_bench.statusserver import StatusServer
from atoll_bench.testbed import Shape, Testbed
from atoll_bench.verdict import Figure, Samples, figures

SMALL = Shape(units=8, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")
WIDE = Shape(units=100, hosts=16, accelerator="tpu-v5p-slice", topology="4x4x4", machine="ct5p-hightpu-4t")
MANY = Shape(units=500, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")
POOL_UNITS = 250
"""A pool of a run has at most 256."""
BURST = 50
"""Pods that fail at once."""
IDLE_SECONDS = 60.0
PATIENCE_SECONDS = 480.0
"""For a creation or a heal: the scheduler looks again at a pod that it had given up after 300 s."""
RUN = "bench"


def measure(cases: Collection[str], repeat: int, progress: Callable[[str], None]) -> list[Figure]:
    """Runs the cases so many times, one after the other, and returns their medians.

    Raises:
        BenchError: something did not happen in time; the message says what.
        ClusterError, HostError: the control plane did not start.
    """
    try:
        return asyncio.run(_measure(cases, repeat, progress))
    except asyncio.CancelledError:
        raise BenchError("ended by SIGTERM") from None


async def _measure(cases: Collection[str], repeat: int, progress: Callable[[str], None]) -> list[Figure]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    samples = Samples()
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        async with Testbed(Path(folder), progress) as bed:
            for turn in range(repeat):
                for shape in _shapes(cases):
                    progress(f"round {turn + 1} of {repeat}: {shape.units} units of {shape.hosts} pods")
                    await _round(bed, shape, cases, turn, samples)
    return figures(samples)


def _shapes(cases: Collection[str]) -> Iterator[Shape]:
    if set(cases) & set("be"):
        yield SMALL
    if set(cases) & set("abc"):
        yield WIDE
    if set(cases) & set("ad"):
        yield MANY


async def _round(bed: Testbed, shape: Shape, cases: Collection[str], turn: int, samples: Samples) -> None:
    """All cases of this shape once, then their limit."""
    rng = random.Random(turn)
    failed: tuple[str, ...] = ()
    async with _trial(bed, shape, f"operator-{shape.name}-{turn}") as trial:
        created = await trial.create()
        if "a" in cases and shape is not SMALL:
            samples.add("a", shape, created)
        bodies = await trial.bodies()
        victims = trial.victims(rng)
        if "b" in cases and shape is not MANY:
            samples.add("b", shape, await trial.heal([next(victims)]))
        if "c" in cases and shape is WIDE:
            healthy = {
                life.unit for life in trial.pods.lives.values() if life.alive and life.incarnation == 1
            }
            burst = [life for life in trial.alive() if life.unit in healthy]
            chosen = rng.sample(burst, BURST)
            failed = tuple(life.name for life in chosen)
            samples.add("c", shape, await trial.heal(chosen))
        if "d" in cases and shape is MANY:
            samples.add("d", shape, await trial.idle())
        if "e" in cases and shape is SMALL:
            for number, name in ((signal.SIGTERM, "after_stop"), (signal.SIGKILL, "after_kill")):
                samples.add("e", shape, {name: await trial.absent(next(victims), number)})
    if set(cases) & set({WIDE: "ac", MANY: "a"}.get(shape, "")):
        samples.add_limits(shape, await _limits(bed, shape, f"limit-{shape.name}-{turn}", bodies, failed))


async def _limits(
    bed: Testbed, shape: Shape, namespace: str, bodies: Sequence[Object], failed: tuple[str, ...]
) -> dict[str, dict[str, float]]:
    """By case; with no operator. `failed` are the names of the pods that failed in case (c)."""
    found: dict[str, dict[str, float]] = {}
    pods = [limit.body(pod, namespace) for pod in bodies]
    async with _namespace(bed, shape, namespace) as seen:
        before, start = bed.used(), time.monotonic()
        await limit.create(bed.bare, pods)
        await seen.until_running(shape.pods, PATIENCE_SECONDS)
        found["a"] = {"all_running": seen.last_running() - start} | _spent(before, bed.used())
        if failed:
            await bed.quiet()
            broken = {_unit(pod) for pod in pods if pod["metadata"]["name"] in failed}
            gangs = [[pod for pod in pods if _unit(pod) == unit] for unit in sorted(broken)]
            before, start = bed.used(), time.monotonic()
            await asyncio.gather(*(fail(bed.admin, namespace, name) for name in failed))
            await limit.replace(bed.bare, gangs, frozenset(failed))
            await _healed(seen, shape, len(gangs) * shape.hosts, start)
            found["c"] = _times(seen, start) | _spent(before, bed.used())
    return found


@dataclass(frozen=True)
class _Trial:
    """A run under one operator."""

    bed: Testbed
    shape: Shape
    namespace: str
    pods: Pods
    server: StatusServer
    operator: Operator

    async def create(self) -> dict[str, float]:
        """From the run's creation until all pods run."""
        before, own, start = self.bed.used(), cores.used(self.operator.pid), time.monotonic()
        path = f"/apis/atoll.dev/v1alpha1/namespaces/{self.namespace}/trainingruns"
        run = await self.bed.admin.call("POST", path, training_run(self.shape))
        uid = run["metadata"]["uid"]
        serving = asyncio.create_task(self.server.serve(self.bed.admin, self.namespace, RUN, uid))
        await self.pods.until_running(self.shape.pods, PATIENCE_SECONDS)
        spent = _spent(before, self.bed.used())
        spent["operator_cpu"] = cores.used(self.operator.pid) - own
        await serving
        await self.bed.quiet(self.operator.pid)
        return {"all_running": self.pods.last_running() - start} | spent

    async def bodies(self) -> list[Object]:
        """The learners' pods, as the API server has them, in the order of their creation."""
        path = f"{pods_path(self.namespace)}?labelSelector=atoll.dev%2Fcomponent%3Dlearner"
        items: list[Object] = (await self.bed.admin.call("GET", path))["items"]
        order = {life.name: life.created for life in self.pods.lives.values()}
        return sorted(items, key=lambda pod: order[pod["metadata"]["name"]])

    def alive(self) -> list[Life]:
        return sorted((life for life in self.pods.lives.values() if life.alive), key=lambda life: life.name)

    def victims(self, rng: random.Random) -> Iterator[Life]:
        """Random pods, each of another unit: a unit that fails again within the hour has to wait."""
        pods = self.alive()
        units = sorted({life.unit for life in pods})
        for unit in rng.sample(units, len(units)):
            yield rng.choice([life for life in pods if life.unit == unit])

    async def heal(self, victims: Sequence[Life]) -> dict[str, float]:
        """From before the first failure is told to the API server until all pods run again."""
        units = {life.unit for life in victims}
        before, own, start = self.bed.used(), cores.used(self.operator.pid), time.monotonic()
        await asyncio.gather(*(fail(self.bed.admin, self.namespace, life.name) for life in victims))
        await _healed(self.pods, self.shape, len(units) * self.shape.hosts, start)
        spent = _spent(before, self.bed.used()) | {"operator_cpu": cores.used(self.operator.pid) - own}
        await self.bed.quiet(self.operator.pid)
        ours, others = touched(self.pods.lives.values(), units, start)
        return _times(self.pods, start) | spent | {"touched": ours, "others_touched": others}

    async def absent(self, victim: Life, number: signal.Signals) -> float:
        """The operator ends, a pod fails, the operator starts: seconds from then until all pods run."""
        self.operator.stop(number)
        start = time.monotonic()
        await fail(self.bed.admin, self.namespace, victim.name)
        self.operator.start()
        await _healed(self.pods, self.shape, self.shape.hosts, start)
        await self.bed.quiet(self.operator.pid)
        return self.pods.last_running() - self.operator.started

    async def idle(self) -> dict[str, float]:
        """A minute in which nothing happens but that the syncer is asked for its status."""
        used, server, start = cores.used(self.operator.pid), self.bed.used(), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        seconds = time.monotonic() - start
        now, most = self.operator.memory()
        return {
            "cpu_share": (cores.used(self.operator.pid) - used) / seconds,
            "api_server_cpu_share": (self.bed.used()["kube-apiserver"] - server["kube-apiserver"]) / seconds,
            "memory": now / 2**20,
            "memory_peak": most / 2**20,
        }


def training_run(shape: Shape) -> Object:
    """One run of so many units, in pools of at most 250."""
    counts = [min(POOL_UNITS, shape.units - first) for first in range(0, shape.units, POOL_UNITS)]
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": RUN},
        "spec": {
            "model": {"preset": "1m"},
            "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
            "target": {"globalSteps": 1_000_000},
            "checkpoint": {"uri": "gs://bucket/run"},
            "pools": [
                {
                    "name": f"p{index}",
                    "accelerator": shape.accelerator,
                    "topology": shape.topology,
                    "units": count,
                }
                for index, count in enumerate(counts)
            ],
        },
    }


@asynccontextmanager
async def _namespace(bed: Testbed, shape: Shape, name: str) -> AsyncIterator[Pods]:
    """A namespace of its own on this shape's nodes, and its pods as they come; gone at the end."""
    await bed.shape(shape)
    await bed.make_namespace(name)
    pods = Pods()
    watching = asyncio.create_task(pods.follow(bed.admin, name))
    try:
        await bed.quiet()
        yield pods
    finally:
        watching.cancel()
        await asyncio.wait([watching])
    await bed.remove_namespace(name)


@asynccontextmanager
async def _trial(bed: Testbed, shape: Shape, name: str) -> AsyncIterator[_Trial]:
    async with _namespace(bed, shape, name) as pods, StatusServer(pods.units) as server:
        operator = bed.operator(name, server.port)
        operator.start()
        try:
            await operator.until_ready()
            await bed.quiet(operator.pid)
            yield _Trial(bed, shape, name, pods, server, operator)
        except BenchError as error:
            raise BenchError(f"{error}; the operator's log ends with: {operator.tail()}") from error
        finally:
            operator.stop()


async def _healed(pods: Pods, shape: Shape, made: int, since: float) -> None:
    """So many pods were made since then, and all run."""

    def done() -> bool:
        return pods.alive == pods.running == shape.pods and len(pods.born_since(since)) >= made

    await pods.until(f"{made} pods are replaced and all run", done, PATIENCE_SECONDS)


def _times(pods: Pods, since: float) -> dict[str, float]:
    created = [life.created - since for life in pods.born_since(since)]
    return {
        "first_created": min(created),
        "last_created": max(created),
        "all_running": pods.last_running() - since,
    }


def _spent(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Seconds of a core of each part."""
    return {f"{name.replace('-', '_')}_cpu": after[name] - before[name] for name in before}


def _unit(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["atoll.dev/unit"])

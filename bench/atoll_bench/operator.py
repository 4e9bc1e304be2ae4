"""Measures the operator on a real API server with fake nodes, against what the cluster alone can do (the limit).

Cases: (a) a run from its creation until all pods run, (b) one pod fails, (c) fifty pods fail at once, (d) idle, and
then training with changing figures, (e) a pod fails while the operator is down, (f) more than 10,000 pods in units of
2,304 hosts, and then another operator that finds them. Scheduler and controller-manager are the real ones with their
defaults. The default of 50 bindings a second after a burst of 100 bounds (c) and its limit, and the leaders of (a),
unless the caller raises it. kwok plays the kubelets. Slices have 16 or 4 hosts, because no slice has 15. A time begins
before the request that causes the change and ends when a watch reports the result. The limit is measured in turns with
the operator in the same cluster.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from atoll_bench import cores, limit
from atoll_bench.client import Object, fail
from atoll_bench.figures import say
from atoll_bench.shapes import HUGE, MANY, SMALL, WIDE, Shape
from atoll_bench.testbed import Testbed, testbed
from atoll_bench.trial import PATIENCE_SECONDS, healed, namespace, times, trial
from atoll_bench.verdict import Figure, Sample, figures, samples
from atoll_cli.errors import CommandError

BURST = 50
"""Pods that fail at once."""


def measure(case: Collection[str], repeat: int, scheduler_qps: int | None) -> list[Figure]:
    """Runs the cases `repeat` times, one after the other, and returns medians. A round that fails gives no figures.
    Raises `CommandError`, which says what did not happen in time, if every round failed, and `ClusterError` or
    `HostError` if the control plane did not start."""
    return asyncio.run(_measure(case, repeat, scheduler_qps))


async def _measure(cases: Collection[str], repeat: int, scheduler_qps: int | None) -> list[Figure]:
    kept, lost = list[Sample](), CommandError("no round")
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        async with testbed(Path(folder), scheduler_qps) as bed:
            if set(cases) & set("ac"):
                await _warm(bed)
            for turn in range(repeat):
                for shape in _shapes(cases):
                    say(f"round {turn + 1} of {repeat}: {shape.units} units of {shape.hosts} pods")
                    try:
                        found = await _round(bed, shape, cases, turn)
                    except CommandError as error:
                        say(f"no figures of this round: {error}")
                        lost = error
                    else:
                        say(", ".join(map(str, found)))
                        kept += found
    if not kept:
        raise lost
    return figures(kept)


async def _warm(bed: Testbed) -> None:
    """Creates a run that is not measured. The API server's cache of pods is too small for the first burst after its
    start, so it ends the watch of the fake kubelets again and again. Without this burst that would slow down only the
    operator, which is measured first."""
    async with trial(bed, MANY, "warm") as one:
        await one.create()


def _shapes(cases: Collection[str]) -> Iterator[Shape]:
    if set(cases) & set("be"):
        yield SMALL
    if set(cases) & set("abc"):
        yield WIDE
    if set(cases) & set("ad"):
        yield MANY
    if "f" in cases:
        yield HUGE


async def _round(bed: Testbed, shape: Shape, cases: Collection[str], turn: int) -> list[Sample]:
    """Measures all cases of this shape once, then their limit."""
    found = list[Sample]()
    rng = random.Random(turn)
    failed: tuple[str, ...] = ()
    successors: list[Object] = []
    async with trial(bed, shape, f"operator-{shape.name}-{turn}") as one:
        if shape is HUGE:
            return samples("f", shape, await one.weigh())
        created = await one.create()
        if "a" in cases and shape is not SMALL:
            found += samples("a", shape, created)
        bodies, objects = await one.bodies(), await one.objects()
        victims = one.victims(rng)
        if "b" in cases and shape is not MANY:
            found += samples("b", shape, await one.heal([next(victims)]))
        if "c" in cases and shape is WIDE:
            living = one.pods.living()
            healthy = {life.unit for life in living if life.incarnation == 1}
            chosen = rng.sample([life for life in living if life.unit in healthy], BURST)
            failed = tuple(life.name for life in chosen)
            found += samples("c", shape, await one.heal(chosen))
            units = {life.unit for life in chosen}
            successors = [pod for pod in await one.bodies() if _unit(pod) in units]
        if "d" in cases and shape is MANY:
            found += samples("d", shape, await one.idle() | await one.training())
        if "e" in cases and shape is SMALL:
            for number, name in ((signal.SIGTERM, "after_stop"), (signal.SIGKILL, "after_kill")):
                found += samples("e", shape, {name: await one.absent(next(victims), number)})
    if set(cases) & set({WIDE: "ac", MANY: "a"}.get(shape, "")):
        name = f"limit-{shape.name}-{turn}"
        found += await _limits(bed, shape, name, objects, bodies, failed, successors)
    return found


async def _limits(
    bed: Testbed,
    shape: Shape,
    name: str,
    objects: Mapping[str, Sequence[Object]],
    bodies: Sequence[Object],
    failed: tuple[str, ...],
    successors: Sequence[Object],
) -> list[Sample]:
    """Measures the limit, without an operator.

    Args:
        failed: names of the pods that failed in case (c).
        successors: the pods of the failed units after the operator had healed them.
    """
    pods = [limit.body(pod, name) for pod in bodies]
    async with namespace(bed, shape, name) as seen:
        cut, before, start = await bed.watches_cut(), bed.used(), time.monotonic()
        await limit.create_objects(bed.bare, objects, name)
        await limit.create(bed.bare, pods)
        await seen.until_running(shape.pods, PATIENCE_SECONDS)
        created = {"all_running": seen.last_running() - start} | cores.spent(before, bed.used())
        created["watches_cut"] = await bed.watches_cut() - cut
        found = samples("a", shape, created, limit=True)
        if failed:
            await bed.quiet()
            broken = sorted({_unit(pod) for pod in successors})
            heals = [
                limit.heal(
                    [pod for pod in bodies if _unit(pod) == unit],
                    [pod for pod in successors if _unit(pod) == unit],
                    name,
                )
                for unit in broken
            ]
            before, start = bed.used(), time.monotonic()
            await asyncio.gather(*(fail(bed.admin, name, pod) for pod in failed))
            await asyncio.gather(*(heal.apply(bed.bare, failed) for heal in heals))
            await healed(seen, shape, dict.fromkeys(broken, 2))
            spent = cores.spent(before, bed.used())
            found += samples("c", shape, times(seen, start) | spent, limit=True)
    return found


def _unit(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["atoll.dev/unit"])

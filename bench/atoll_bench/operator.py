"""Measures the operator on a real API server with fake nodes.

Cases: (a) a run from its creation until all pods run, (b) one pod fails, (c) fifty pods fail at once, (d) idle, and
then training with figures that change, (e) a pod fails while the operator is down. Scheduler and controller-manager
are the real ones with their defaults: 50 bindings a second after a burst of 100 bound (a), unless the caller raises
them. kwok plays the kubelets. A time begins before the request that causes it and ends when a watch reports its end.
"""

from __future__ import annotations

import asyncio
import random
import signal
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from atoll_bench.client import BenchError
from atoll_bench.shapes import MANY, SMALL, WIDE, Shape
from atoll_bench.testbed import Testbed
from atoll_bench.trial import trial
from atoll_bench.verdict import Figure, Samples, figures

BURST = 50
"""Pods that fail together in case (c)."""


def measure(
    cases: Collection[str], repeat: int, progress: Callable[[str], None], scheduler_qps: int | None = None
) -> list[Figure]:
    """Runs the cases `repeat` times, one after the other, and returns their medians.

    Args:
        scheduler_qps: requests a second of the scheduler; None for its default.

    Raises:
        BenchError: something did not happen in time; the message says what.
        ClusterError, HostError: the control plane did not start.
    """
    try:
        return asyncio.run(_measure(cases, repeat, progress, scheduler_qps))
    except asyncio.CancelledError:
        raise BenchError("ended by SIGTERM") from None


async def _measure(
    cases: Collection[str], repeat: int, progress: Callable[[str], None], scheduler_qps: int | None
) -> list[Figure]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    samples = Samples()
    with tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder:
        async with Testbed(Path(folder), progress, scheduler_qps) as bed:
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
    """Runs all cases of this shape once."""
    rng = random.Random(turn)
    async with trial(bed, shape, f"operator-{shape.name}-{turn}") as one:
        created = await one.create()
        if "a" in cases and shape is not SMALL:
            samples.add("a", shape, created)
        victims = one.victims(rng)
        if "b" in cases and shape is not MANY:
            samples.add("b", shape, await one.heal([next(victims)]))
        if "c" in cases and shape is WIDE:
            healthy = {life.unit for life in one.pods.lives.values() if life.alive and life.incarnation == 1}
            burst = [life for life in one.alive() if life.unit in healthy]
            samples.add("c", shape, await one.heal(rng.sample(burst, BURST)))
        if "d" in cases and shape is MANY:
            samples.add("d", shape, await one.idle() | await one.training())
        if "e" in cases and shape is SMALL:
            for number, name in ((signal.SIGTERM, "after_stop"), (signal.SIGKILL, "after_kill")):
                samples.add("e", shape, {name: await one.absent(next(victims), number)})

"""What a pass over a run costs: it grows slowly with the number of units, and its metric has all of it."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest
from memory_world import World, played
from objects import POOLS

from atoll_operator.kube.cache import Key
from atoll_operator.metrics.process import CpuTimed


def calls(units: int) -> int:
    """Functions that a pass calls over a run of so many units, which have not changed since the last one."""
    key, count = Key("TrainingRun", "ns", "r"), 0

    def counted(_: Any, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    async def work(world: World) -> None:
        world.begin(pools=[{**POOLS[0], "units": units}])
        await world.until("all exist", lambda: world.run().get("units") == units)
        await asyncio.sleep(100)  # until nothing but figures changes
        sys.setprofile(counted)
        try:
            await world.term._reconcile(key)
        finally:
            sys.setprofile(None)

    played(1, work)
    return count


def test_a_pass_over_a_run_does_little_for_a_unit_that_has_not_changed() -> None:
    """A run of 4,096 units took 0.2 s of CPU with 75 calls for each, while other runs waited; with 46 still 0.18 s."""
    assert calls(24) - calls(8) < 40 * 16


async def test_the_cpu_of_a_pass_is_that_of_all_its_own_steps_and_of_no_other_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: now)

    async def burn(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def work() -> None:
        await burn(1)
        await asyncio.create_task(burn(16))
        try:
            await asyncio.Event().wait()
        finally:
            await burn(2)

    async def awaited() -> None:
        await timed

    timed = CpuTimed(work())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(awaited(), 0.1)
    assert (now, timed.seconds) == (19, 3)

"""Many units that join together: each is welcomed when its join is on the disk, and few records are written for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lone_shard import joined

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.model import describe, initial
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.recovery import recover
from atoll_runtime.syncer.tape import Tape

UNITS = 40


async def test_units_that_join_while_a_record_is_written_share_the_next_one_and_are_welcomed_after_it(
    make_run: Any, tmp_path: Path
) -> None:
    run = make_run()
    layout = build_layout(describe(run.model), run.outer.fragments, len(run.shards))
    store = GlobalStore(run.checkpoint.uri)
    start = recover(run, Rules.of(run), layout, tmp_path / "journal", store, lambda: initial(run.model))
    driver = Driver(run, layout, start, store, Tape(tmp_path / "tape", run.tape), 10**9)
    real, written = driver.journal.remember, list[set[str]]()
    under_way, go_on = threading.Event(), threading.Event()

    def remember(facts: Mapping[str, Any]) -> None:
        under_way.set()
        go_on.wait(60)
        real(facts)
        written.append(set(facts["machine"]["units"]))

    driver.journal.remember = remember  # type: ignore[method-assign]

    async def join(unit: str) -> None:
        driver.feed(joined(unit, 1, 0, 1))
        await driver.durable()
        assert unit in written[-1]

    first = asyncio.create_task(join("a"))
    await asyncio.to_thread(under_way.wait, 60)
    others = [asyncio.create_task(join(f"b-{number}")) for number in range(UNITS)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, *others)
    assert [len(units) for units in written] == [1, 1 + UNITS]
    await driver.close()

"""A run in four bits, on real sockets."""

from __future__ import annotations

import math
import signal
from typing import Any

import numpy as np
import pytest

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import OuterSpec, QuorumSpec, TargetSpec
from atoll_runtime.transport import codecs

pytestmark = pytest.mark.timeout(300)  # 10 s alone


def test_units_learn_with_four_bits_each_way_also_when_the_syncer_is_killed(
    make_run: Any, syncer: Any, numpy_unit: Any, eventually: Any
) -> None:
    outer = OuterSpec(fragments=4, interval=4, codec="int4")
    run = make_run(outer=outer, quorum=QuorumSpec(min=2), target=TargetSpec(global_steps=200))
    shard = syncer(run)

    units = [numpy_unit(run, name, until=100).start() for name in "ab"]
    eventually(lambda: (status := shard.status()) and status.rounds >= 60, 120)
    shard.end(signal.SIGKILL)
    shard.start()
    for unit in units:
        unit.until = math.inf
    eventually(lambda: all(unit.client.stop() for unit in units), 120)
    for unit in units:
        counted = unit.client.counters
        parts = [stop - start for start, stop in unit.bounds]
        whole = 2 * sum(parts)  # all fragments once, in bfloat16
        assert counted.connections == 2
        assert counted.pushed > 150
        assert counted.bytes_out <= counted.pushed * max(codecs.size(part, "int4") for part in parts)
        # Whole at first, and after the shard's second start, whose versions have other bits; else changes.
        most = 2 * whole + 200 * max(codecs.size(part, "int4") for part in parts)
        assert whole < counted.bytes_in < most < 0.4 * 200 * whole / 4
    theta = GlobalStore(run.checkpoint.uri).load(200).theta
    assert np.mean((np.concatenate([tensor.ravel() for tensor in theta.values()]) - 1.0) ** 2) < 0.05
    shard.end(signal.SIGTERM)

"""A run whose units push in four bits, on real sockets."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import OuterSpec, QuorumSpec, TargetSpec, identity
from atoll_runtime.transport import int4
from atoll_runtime.transport.grpc_client import GrpcTransport
from atoll_runtime.transport.tls import Tls


@pytest.fixture(name="tls")
def tls_fixture(authority: Any) -> Callable[[str], Path]:
    """The folder of the syncer's, or of a unit's, certificate."""
    ca = authority("walk")
    role = {"syncer": identity("default", "walk", "syncer", "walk-syncer")}
    return lambda name: ca.issue(name, role.get(name, identity("default", "walk", "unit", name)))


def test_units_that_push_in_four_bits_reach_what_they_learn_and_send_a_quarter_of_what_they_get(
    make_run: Any, syncer: Any, numpy_unit: Any, tls: Any, eventually: Any
) -> None:
    outer = OuterSpec(fragments=4, interval=4, codec="int4")
    run = make_run(outer=outer, quorum=QuorumSpec(min=2), target=TargetSpec(global_steps=300))
    shard = syncer(run, tls("syncer"))

    def link(name: str) -> GrpcTransport:
        return GrpcTransport(run.shards[0].host, run.shards[0].port, Tls.read(tls(name)))

    units = [numpy_unit(run, name, link(name)).start() for name in "ab"]
    eventually(lambda: all(unit.exchange.stop() for unit in units), 40)
    for unit in units:
        sent = unit.exchange.counters
        parts = [stop - start for start, stop in unit.bounds]
        assert sent.pushed > 10
        assert sent.bytes_out <= sent.pushed * max(map(int4.size, parts))
        assert sent.bytes_out / sent.pushed < 0.6 * max(parts)  # bf16 has 2 bytes an element
    theta = GlobalStore(run.checkpoint.uri).load(300).theta
    assert np.mean((np.concatenate([tensor.ravel() for tensor in theta.values()]) - 1.0) ** 2) < 0.05
    shard.end(signal.SIGTERM)

"""What the syncer tells of a unit's link, which a proxy delays and a restart of the syncer breaks."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from atoll_bench.slowlink import SlowLink
from atoll_runtime.contract import LinkReport, QuorumSpec, SyncerAddress, TargetSpec
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.tls import Tls

pytestmark = pytest.mark.timeout(300)

DELAY_SECONDS, STEP_SECONDS = 0.2, 0.2


def test_a_units_link_is_told_as_it_is_and_what_breaks_is_counted(
    make_run: Any, syncer: Any, numpy_unit: Any, certificate: Any, eventually: Any
) -> None:
    # Both units are members of each round: with one alone the distant one is too late for as long as chance wants.
    run = make_run(target=TargetSpec(global_steps=10_000), quorum=QuorumSpec(min=2))
    shard = syncer(run)
    address = run.shards[0]

    def link(name: str) -> LinkReport:
        status = shard.status()
        return status.units[name].link if status and name in status.units else LinkReport()

    with (
        SlowLink("localhost", address.port) as session,
        SlowLink("localhost", address.transfer_port) as bodies,
    ):
        session.latency = bodies.latency = DELAY_SECONDS
        distant = SyncerAddress(host="localhost", port=session.port, transfer_port=bodies.port)
        for name, through in (("near", address), ("far", distant)):
            tls = Tls(certificate(name))
            numpy_unit(run, name, TlsNetwork(through, tls), step_seconds=STEP_SECONDS).start()
        eventually(
            lambda: all(link(name).rtt_seconds and link(name).up_gbps for name in ("near", "far")), 120
        )
        near, far = link("near"), link("far")
        assert 0 < near.rtt_seconds < DELAY_SECONDS <= far.rtt_seconds < 10 * DELAY_SECONDS
        assert far.up_gbps < near.up_gbps and far.down_gbps < near.down_gbps
        assert near.failures == far.failures == 0 < far.busy_share <= 1
        rtt = shard.figure('unit_link_rtt_seconds{unit="far"}')
        assert DELAY_SECONDS <= rtt < 10 * DELAY_SECONDS

        assert shard.end(signal.SIGKILL) == -signal.SIGKILL
        shard.start()
        eventually(lambda: min(link("near").failures, link("far").failures) >= 1, 120)

"""What the syncer tells of a unit's link, which a proxy delays and a restart of the syncer breaks."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from atoll_bench.slowlink import SlowLink
from atoll_runtime.contract import LinkReport, OuterSpec, QuorumSpec, SyncerAddress, TargetSpec
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


def test_a_body_on_its_way_is_taken_though_its_host_has_to_connect_anew_meanwhile(
    make_run: Any, syncer: Any, numpy_unit: Any, certificate: Any, eventually: Any
) -> None:
    outer = OuterSpec(fragments=4, interval=200, overlap=2, learning_rate=1.0, momentum=0.0)
    run = make_run(target=TargetSpec(global_steps=10_000), outer=outer)
    shard = syncer(run)
    tls = Tls(certificate("a"))
    with (
        SlowLink("localhost", run.shards[0].port) as session,
        SlowLink("localhost", run.shards[0].transfer_port) as bodies,
    ):
        bodies.latency = 1.0  # twice until a body is acknowledged: before it is sent, and after
        through = SyncerAddress(host="localhost", port=session.port, transfer_port=bodies.port)
        unit = numpy_unit(run, "a", TlsNetwork(through, tls), step_seconds=0.1).start()

        def merged() -> int:
            status = shard.status()
            return status.units["a"].contributions if status and "a" in status.units else 0

        eventually(lambda: merged() >= 1, 120)
        sent = unit.contributed
        eventually(lambda: unit.contributed > sent)
        session.cut_at = 0
        eventually(lambda: shard.status().units["a"].link.failures)
        eventually(lambda: merged() > sent)
        assert unit.contributed == sent + 1, "it had to send none again"

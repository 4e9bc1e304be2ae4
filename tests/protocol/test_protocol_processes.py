"""The real syncer process and real TLS sockets on loopback; units learn in numpy."""

from __future__ import annotations

import logging
import math
import signal
import socket
import time
from typing import Any

import numpy as np
import pytest
from protocol_parties import Gang, networks

from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.checkpoint.bucket import TIMEOUT
from atoll_runtime.contract import EXIT_OK, CheckpointSpec, SyncerStatus, TargetSpec, identity
from atoll_runtime.transport.messages import Stop

pytestmark = pytest.mark.timeout(300)  # 10 s alone


def test_two_units_train_to_the_target_through_a_syncer_that_is_killed_and_fences_the_replaced(
    make_run: Any,
    authority: Any,
    certificate: Any,
    syncer: Any,
    numpy_unit: Any,
    eventually: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = make_run(target=TargetSpec(global_steps=150))
    process = syncer(run)

    # Both connect before the syncer is there, and go on trying. The run is not over before all this is seen.
    a = numpy_unit(run, "a", until=50).start()
    gang = Gang(2)
    pair = [numpy_unit(run, "b", host=host, hosts=2, gang=gang, until=50).start() for host in (0, 1)]
    eventually(lambda: (process.status() or SyncerStatus(run_uid="", phase="Starting")).rounds >= 20, 120)
    assert "atoll_syncer_rounds_total" in process.plain("/metrics")
    assert process.plain("/readyz").startswith("Running")

    # Killed at any moment and started again, it goes on from its journal; the units did not notice.
    steps = a.loop.step
    assert process.end(signal.SIGKILL) == -signal.SIGKILL
    before = dict(a.received)
    process.start()
    for each in (a, *pair):
        each.until = 100
    eventually(lambda: (status := process.status()) and status.restarts == 1 and status.rounds >= 70, 120)
    eventually(lambda: a.loop.step > steps)
    assert a.running
    assert all(a.received[p] >= version for p, version in before.items())

    # A foreign authority is refused by TLS, a certificate of another unit by the syncer.
    outside = authority("foreign").issue("c", identity("default", "walk", "unit", "c"))
    with caplog.at_level(logging.WARNING):
        foreign = numpy_unit(run, "c", networks(run, outside)).start()
        eventually(lambda: "TLS refused" in caplog.text)
    impostor = numpy_unit(run, "a", networks(run, certificate("d"))).start()
    assert "unit/d, not" in eventually(impostor.client.last_word).reason
    assert foreign.client.last_word() is None and foreign.contributed == 0

    # A newer incarnation drops the older one's session at once.
    heir = numpy_unit(run, "a", incarnation=2).start()
    assert eventually(a.client.last_word).incarnation == 2
    welcome = heir.client.welcome(50)
    assert welcome is not None and welcome.cursor > 0
    eventually(lambda: heir.contributed)
    for each in pair:
        each.until = math.inf
    eventually(lambda: heir.stopped and all(each.stopped for each in pair))

    status = eventually(lambda: (s := process.status()) and s.phase == "Finished" and s)
    assert status.global_step == 150
    assert status.final_checkpoint.endswith("/global/150")
    assert status.units["a"].incarnation == 2 and status.units["a"].contributions > 0
    assert status.units["b"].hosts == 0 or status.units["b"].state == "Learning"
    assert status.real_interval > 2.5  # H is 4: it must not collapse; on a loaded machine it is longer
    half = 2 * max(f.size for f in a.layout.fragments)
    assert status.bytes_in >= half and status.bytes_out >= half
    cut = GlobalStore(run.checkpoint.uri).load(150)
    assert cut.meta["model"] and cut.meta["fingerprint"] == a.layout.fingerprint
    theta = np.concatenate([tensor.ravel() for tensor in cut.theta.values()])
    assert np.mean((theta - 1.0) ** 2) < 0.05  # the units pull towards 1

    # A unit that comes late, or a syncer that starts again, finds the run finished.
    process.end(signal.SIGTERM)
    process.start()
    late = numpy_unit(run, "a", incarnation=3).start()
    assert eventually(late.client.last_word) == Stop(150)
    assert eventually(process.status).phase == "Finished"
    assert process.end(signal.SIGTERM) == 0
    assert list((process.folder / "volume/tape").iterdir())


def test_a_syncer_that_is_asked_to_end_waits_for_no_bucket(
    make_run: Any, syncer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("localhost", 0)) as bucket:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://localhost:{bucket.getsockname()[1]}")
        run = make_run(checkpoint=CheckpointSpec(uri="gs://silent/run"))
        process = syncer(run)
        bucket.settimeout(60)
        call, _ = bucket.accept()  # it is asked for the newest checkpoint, and says nothing
        with call:
            asked = time.monotonic()
            assert process.end(signal.SIGTERM) == EXIT_OK
            assert time.monotonic() - asked < TIMEOUT / 2

"""A run is suspended: its units leave, the operator orders a cut, and the shards go on at the same step later."""

from __future__ import annotations

import json
import signal
import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from protocol_parties import ANSWER_SECONDS

from atoll_operator.plan.run.syncer_state import next_checkpoint_step
from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.contract import RunContract, SyncerStatus, TargetSpec

pytestmark = pytest.mark.timeout(600)


def order(run: RunContract, shard: int, folder: Path, body: bytes) -> int:
    """The answer's status."""
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    url = f"https://localhost:{run.shards[shard].status_port}/status"
    try:
        with urllib.request.urlopen(url, data=body, timeout=ANSWER_SECONDS, context=context) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def told(syncer: Any) -> SyncerStatus:
    return syncer.status() or SyncerStatus(run_uid="", phase="Starting")


def ordered(run: RunContract, first: Any, folder: Path) -> int:
    """Asks as the operator does, by its own rule; the step of the cut that holds all, or 0 while there is none.

    A cut of the step that was reached may be on its way already, and lack what came after it: then a later one is asked
    for when that one stands.
    """
    report = told(first)
    step = next_checkpoint_step(report, None)
    if report.checkpoint.current:
        return step
    assert order(run, 0, folder, json.dumps({"cut": step}).encode()) == 202
    return 0


def test_a_cut_that_is_ordered_when_the_units_are_gone_holds_all_and_the_run_goes_on_at_its_step(
    make_run: Any, syncer: Any, numpy_unit: Any, certificate: Any, eventually: Any
) -> None:
    run = make_run(shards=2, target=TargetSpec(global_steps=10_000))
    shards = [syncer(run, s) for s in (0, 1)]
    units = [numpy_unit(run, name).start() for name in "ab"]
    eventually(lambda: all(each.figure("rounds_total") >= 12 for each in shards), 120)
    for unit in units:
        unit.halt()
    eventually(lambda: all({u.state for u in told(each).units.values()} == {"Gone"} for each in shards))

    assert order(run, 0, certificate("a"), b'{"cut": 100000}') == 403
    assert order(run, 0, certificate("operator"), b'{"stop": true}') == 400
    step = eventually(lambda: ordered(run, shards[0], certificate("operator")), 120)
    cut = GlobalStore(run.checkpoint.uri).load(step)
    assert max(cut.versions) == max(each.figure("global_step") for each in shards)
    assert all(np.isfinite(tensor).all() for tensor in cut.theta.values())

    ends = [each.figure("global_step") for each in shards]
    for each in shards:
        assert each.end(signal.SIGTERM) == 0
        each.start()
    eventually(lambda: [told(each).restarts for each in shards] == [2, 1])
    eventually(lambda: [each.figure("global_step") for each in shards] == ends)
    again = [numpy_unit(run, name, incarnation=2) for name in "ab"]
    for unit in again:
        unit.hold_nothing()
        unit.start()
    eventually(
        lambda: all(each.figure("global_step") > end for each, end in zip(shards, ends, strict=True)), 120
    )

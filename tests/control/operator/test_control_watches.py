"""The watches against a real API server that is away or goes back: the operator goes on, and a unit that loses its pod
is soon whole again. What is deleted while a watch is broken: test_kube_watches."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apiserver import install
from control_bench import Bench

from atoll_local.controlplane import ControlPlane

pytestmark = pytest.mark.timeout(400)
UNIT = "r-one-0"
RECOVERY_SECONDS = 3
"""After the API server is back."""


@pytest.mark.parametrize("seconds", [3, pytest.param(90, marks=pytest.mark.long)])
def test_an_api_server_that_is_restarted_is_followed_again(
    bench: Bench, plane: ControlPlane, seconds: int
) -> None:
    """3 s is longer than the client's tries of one request take, 90 s than a lease lasts."""
    operator = bench.operator()
    bench.learn(units=1)
    plane.stop_apiserver()
    time.sleep(seconds)
    plane.start_apiserver()
    [(name, uid)] = bench.uids(UNIT).items()
    bench.delete("Pod", name, grace=0)
    began = time.monotonic()
    whole = lambda: bench.uids(UNIT) and bench.run_pods(UNIT)  # noqa: E731
    bench.until("the pod is replaced", lambda: uid not in bench.uids(UNIT).values() and whole())
    took = time.monotonic() - began
    print(json.dumps({"recovered_seconds": round(took, 2)}))
    assert took <= RECOVERY_SECONDS
    assert operator.alive
    assert "Traceback" not in operator.log.read_text()
    bench.until("it is ready", lambda: operator.page("/readyz")[0] == 200)


def test_an_operator_ends_when_etcd_went_back_and_its_successor_goes_on(tmp_path: Path, settle: Any) -> None:
    """etcd is restored to a state before a unit of the run was healed and another run was created."""
    with ControlPlane(tmp_path / "plane") as plane:
        install(plane)
        with settle(plane, Bench) as bench:
            operator = bench.operator()
            operator.kill()
            operator.environment["ATOLL_RESYNC_SECONDS"] = "10"
            operator.start()
            bench.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
            bench.run(units=1)
            bench.until("all pods", lambda: len(bench.pods()) == 3)
            with stopped(plane):
                shutil.copytree(plane.folder / "etcd", tmp_path / "before")
            bench.run("s", units=1)
            bench.until("all pods", lambda: len(bench.pods()) == 6)
            bench.delete("Pod", "r-one-0-1-0", grace=0)
            bench.until("it is back", lambda: bench.pods(UNIT))
            with stopped(plane):
                shutil.rmtree(plane.folder / "etcd")
                shutil.copytree(tmp_path / "before", plane.folder / "etcd")
            assert operator.process.wait(60) == 1
            assert "went back to an earlier state" in operator.log.read_text()
            operator.start()
            bench.run("t", units=1)
            bench.until("all pods", lambda: len(bench.pods()) == 6)
            assert bench.names("TrainingRun") == {"r", "t"}


@contextmanager
def stopped(plane: ControlPlane) -> Iterator[None]:
    """Neither API server nor etcd runs."""
    plane.stop_apiserver()
    plane._daemons["etcd"].stop(signal.SIGKILL)
    yield
    plane._start_etcd()
    plane.start_apiserver()

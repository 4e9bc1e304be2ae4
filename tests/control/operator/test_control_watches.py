"""The watches against a real API server that fails: the operator goes on, and nothing that happened is missed. Each
test deletes a pod while the operator cannot see it, and the unit is whole again soon after the API server is back."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from apiserver import install
from control_bench import Bench
from ill_gate import IllGate

from atoll_local.controlplane import ControlPlane

pytestmark = pytest.mark.timeout(400)
UNIT = "r-one-0"
RECOVERY_SECONDS = 3
"""After the API server is back."""


@pytest.fixture
def learning(bench: Bench, gate: IllGate) -> Iterator[Bench]:
    """A bench with a run whose units learn, under an operator behind the gate."""
    operator = bench.operator(KUBECONFIG=str(gate.kubeconfig))
    bench.learn(units=1)
    yield bench
    assert operator.alive
    assert "Traceback" not in operator.log.read_text()
    bench.until("it is ready", lambda: operator.page("/readyz")[0] == 200)
    operator.kill()  # before its gate closes


def lose_pod(bench: Bench) -> Callable[[], bool]:
    """Deletes the unit's pod at once; the result tells whether it was replaced."""
    [(name, uid)] = bench.uids(UNIT).items()
    bench.delete("Pod", name, grace=0)
    return lambda: bool(bench.uids(UNIT)) and uid not in bench.uids(UNIT).values() and bench.run_pods(UNIT)


def recovers(bench: Bench, replaced: Callable[[], bool]) -> None:
    began = time.monotonic()
    bench.until("the pod is replaced", replaced)
    took = time.monotonic() - began
    print(json.dumps({"recovered_seconds": round(took, 2)}))
    assert took <= RECOVERY_SECONDS


@pytest.mark.parametrize("seconds", [8, pytest.param(90, marks=pytest.mark.long)])
def test_a_pod_that_goes_during_an_outage_is_replaced(learning: Bench, gate: IllGate, seconds: int) -> None:
    """8 s is longer than the client's tries of one request take: 2.3 s."""
    gate.ill = True
    learning.until("requests are refused", lambda: gate.refused)
    replaced = lose_pod(learning)
    time.sleep(seconds)
    assert not replaced(), "the operator cannot know"
    gate.ill = False
    recovers(learning, replaced)


def test_an_api_server_that_is_restarted_is_followed_again(learning: Bench, plane: ControlPlane) -> None:
    plane.stop_apiserver()
    time.sleep(3)  # longer than the client's tries of one request
    plane.start_apiserver()
    recovers(learning, lose_pod(learning))


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

"""The watches against a real API server that fails: the operator goes on, and nothing that happened is missed.

Each test deletes a pod while the operator cannot see it, and the unit is whole again soon after the API server is back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ill_gate import IllGate

from atoll_local.controlplane import ControlPlane

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNIT = "r-one-0"
OUTAGE_SECONDS = 20
"""Longer than the client's tries of one request take."""
RECOVERY_SECONDS = 3
"""After the API server is back."""


@pytest.fixture
def gate(plane: ControlPlane, api: Any, operator_kubeconfig: Path, tmp_path: Path) -> Iterator[IllGate]:
    authority = plane.authority
    assert authority is not None
    pair = authority.issue("ill-gate", "ill-gate", hosts=("127.0.0.1",))
    one = IllGate(pair, operator_kubeconfig, api.authority.decode(), tmp_path / "through-gate")
    yield one
    one.close()


@pytest.fixture
def learning(bench: Any, gate: IllGate, tmp_path: Path) -> Iterator[Any]:
    """A bench with a run whose pods all run, under an operator behind the gate."""
    operator = bench.operator(KUBECONFIG=str(tmp_path / "through-gate"))
    run = bench.run(units=1)
    bench.settled(run, [UNIT, "r-two-0"])
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    bench.serve(run)
    bench.until("it learns", lambda: bench.condition("LearnerUnit", UNIT, "Learning")[0] == "True")
    yield bench
    assert operator.alive
    assert "Traceback" not in operator.log.read_text()
    bench.until("it is ready", lambda: operator.page("/readyz")[0] == 200)
    operator.kill()  # before its gate closes


def lose_pod(bench: Any) -> Callable[[], bool]:
    """Deletes the unit's pod at once; the result tells whether it was replaced."""
    [name] = bench.pods(UNIT)
    uid = bench.get("Pod", name)["metadata"]["uid"]
    bench.api.delete("Pod", bench.namespace, name, grace=0)

    def replaced() -> bool:
        pods = bench.pods(UNIT).values()
        return any(pod["metadata"]["uid"] != uid and pod["status"]["phase"] == "Running" for pod in pods)

    return replaced


def recovers(bench: Any, replaced: Callable[[], bool], seconds: float = RECOVERY_SECONDS) -> None:
    began = time.monotonic()
    bench.until("the pod is replaced", replaced, 60)
    took = time.monotonic() - began
    print(json.dumps({"recovered_seconds": round(took, 2)}))
    assert took <= seconds


def test_a_pod_that_is_deleted_while_the_api_server_answers_503_is_replaced(
    learning: Any, gate: IllGate
) -> None:
    gate.ill = True
    learning.until("requests are refused", lambda: gate.refused)
    replaced = lose_pod(learning)
    time.sleep(OUTAGE_SECONDS)
    assert not replaced(), "the operator cannot know"
    gate.ill = False
    recovers(learning, replaced)


def test_an_error_in_the_stream_of_pods_restarts_the_watches_and_loses_nothing(
    learning: Any, gate: IllGate
) -> None:
    gate.error_in = "/pods"
    learning.until("the stream ended with an error", lambda: gate.errors)
    recovers(learning, lose_pod(learning))


def test_an_api_server_that_is_killed_and_restarted_is_followed_again(
    learning: Any, plane: ControlPlane
) -> None:
    plane.stop_apiserver()
    time.sleep(5)
    plane.start_apiserver()
    recovers(learning, lose_pod(learning))


def test_a_pod_that_is_deleted_while_the_watch_is_down_is_replaced(learning: Any, gate: IllGate) -> None:
    gate.ill = True
    replaced = lose_pod(learning)
    learning.until("requests are refused", lambda: gate.refused)
    gate.ill = False
    recovers(learning, replaced)

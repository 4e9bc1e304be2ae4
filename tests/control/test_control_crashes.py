"""The operator is killed with SIGKILL at several moments of a change, and each object is made once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
PODS = {"r-one-0-1-0", "r-one-1-1-0", "r-two-0-1-0", "r-two-0-1-1"}


def killed_whenever(bench: Any, operator: Any, signs: list[Callable[[], Any]]) -> None:
    """Kill the operator as soon as each sign is seen, and start it again."""
    for number, sign in enumerate(signs):
        bench.until(f"sign {number}", sign, 60)
        operator.kill()
        operator.start()


def status(bench: Any, kind: str, name: str) -> dict[str, Any]:
    return dict(bench.get(kind, name).get("status", {}))


def test_operator_killed_while_a_run_is_new_makes_each_pod_once(bench: Any) -> None:
    operator = bench.operator()
    run = bench.run()
    killed_whenever(
        bench,
        operator,
        [
            lambda: bench.get("Secret", "r-ca"),
            lambda: bench.get("LearnerUnit", "r-two-0"),
            lambda: bench.pods(),
            lambda: "r-two-0-1-1" in bench.pods(),
        ],
    )
    bench.settled(run, UNITS)
    assert set(bench.pods()) == PODS
    assert [status(bench, "LearnerUnit", unit)["incarnation"] for unit in UNITS] == [1, 1, 1]


def test_operator_killed_during_a_heal_restarts_the_unit_once(bench: Any) -> None:
    operator = bench.operator()
    bench.settled(bench.run(), UNITS)
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    before = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    bench.kubelet.fail(bench.namespace, "r-two-0-1-0")
    killed_whenever(
        bench,
        operator,
        [lambda: True, lambda: status(bench, "LearnerUnit", "r-two-0")["incarnation"] == 2],
    )
    bench.until("one new pod", lambda: set(bench.pods("r-two-0")) == {"r-two-0-2-0", "r-two-0-1-1"})
    after = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    assert {name: uid for name, uid in before.items() if name != "r-two-0-1-0"}.items() <= after.items()
    assert status(bench, "LearnerUnit", "r-two-0")["restartCount"] == 1


def test_operator_killed_during_a_suspension_suspends_the_run_with_a_checkpoint(bench: Any) -> None:
    operator = bench.operator()
    run = bench.run()
    bench.settled(run, UNITS)
    bench.serve(run)
    bench.until("all learn", lambda: status(bench, "TrainingRun", "r").get("unitsSummary") == "3/3")
    path = f"{bench.namespace}/r/0"
    bench.syncers.reluctant.add(path)
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": {"suspend": True}})
    killed_whenever(bench, operator, [lambda: not bench.pods(), lambda: bench.syncers.orders.get(path)])
    bench.syncers.reluctant.discard(path)
    bench.until("Suspended", lambda: bench.condition("TrainingRun", "r", "Suspended")[0] == "True")
    assert status(bench, "TrainingRun", "r")["checkpoint"]["step"] == 10
    bench.until("no syncer", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0)

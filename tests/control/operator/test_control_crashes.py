"""The operator is killed with SIGKILL at several moments of a change, and each object is made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from control_bench import Bench

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
PODS = {"r-one-0-1-0", "r-one-1-1-0", "r-two-0-1-0", "r-two-0-1-1"}


def killed_whenever(bench: Bench, operator: Any, *signs: Callable[[], Any]) -> None:
    """Kill the operator as soon as each sign is seen, and start it again."""
    for number, sign in enumerate(signs):
        bench.until(f"sign {number}", sign)
        operator.kill()
        operator.start()


def test_operator_killed_while_a_run_is_new_makes_each_pod_once(bench: Bench) -> None:
    operator = bench.operator()
    bench.run()
    made = (partial(bench.get, "Secret", "r-ca"), partial(bench.get, "LearnerUnit", "r-two-0"), bench.pods)
    killed_whenever(bench, operator, *made, lambda: "r-two-0-1-1" in bench.pods())
    bench.settled(*UNITS)
    assert set(bench.pods()) == PODS
    assert [bench.unit(unit)["incarnation"] for unit in UNITS] == [1, 1, 1]


def test_operator_killed_during_a_heal_restarts_the_unit_once(bench: Bench) -> None:
    operator = bench.operator()
    bench.begin()
    before = bench.uids()
    bench.kubelet.fail(bench.namespace, "r-two-0-1-0")
    killed_whenever(bench, operator, lambda: True, lambda: bench.unit("r-two-0")["incarnation"] == 2)
    bench.until("one new pod", lambda: set(bench.pods("r-two-0")) == {"r-two-0-2-0", "r-two-0-1-1"})
    del before["r-two-0-1-0"]
    assert before.items() <= bench.uids().items()
    assert bench.unit("r-two-0")["restartCount"] == 1


def test_operator_killed_during_a_suspension_suspends_the_run_with_a_checkpoint(bench: Bench) -> None:
    operator = bench.operator()
    bench.learn()
    path = f"{bench.namespace}/r/0"
    bench.syncers.reluctant.add(path)
    bench.change(suspend=True)
    killed_whenever(bench, operator, lambda: not bench.pods(), lambda: bench.syncers.orders.get(path))
    bench.syncers.reluctant.discard(path)
    bench.until_condition("TrainingRun", "r", "Suspended", "True")
    assert bench.status("TrainingRun", "r")["checkpoint"]["step"] == 10
    bench.until("no syncer", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0)

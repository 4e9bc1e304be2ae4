"""What a heal costs stands on the unit's account, however it ends, under the failure that began it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from objects import TWO_HOSTS as SPEC

from atoll_operator.api.common import Cost, CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_runtime.contract import UnitReport

NOW = 1_700_000_000.0
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})
ORDERS = Orders(stop="", finishing=False, recovery=RecoverySpec(), settings=SETTINGS)
HEALING = LearnerUnitStatus(
    phase="Healing", incarnation=2, gang=2, placed_gang=2, heal_start_time=format_time(NOW - 30),
    heal_reason="NodeLost", chips=8, step_seconds=0.5,
)  # fmt: skip
THIRTY = Cost(failures=1, seconds=30.0, chip_seconds=240.0, steps=60)
COST = CostStatus(**THIRTY.model_dump(), by_reason={"NodeLost": THIRTY})


def make_pod(host: int, **changes: Any) -> PodView:
    name = f"r-two-0-2-{host}"
    running: dict[str, Any] = {"phase": "Running", "node": f"n{host}", "ready": True, "started_at": NOW - 20}
    return PodView(
        name=name, uid=name, unit="r-two-0", gang=2, incarnation=2, host=host, **(running | changes)
    )


def make_unit(**changes: Any) -> UnitObserved:
    values: dict[str, Any] = {
        "name": "r-two-0", "namespace": "ns", "uid": "u", "generation": 1, "spec": SPEC, "status": HEALING,
        "pods": (make_pod(0), make_pod(1)), "orders": ORDERS,
    }  # fmt: skip
    return UnitObserved(**(values | changes))


def test_a_heal_that_ends_with_a_merge_says_what_it_cost() -> None:
    report = UnitReport(incarnation=2, hosts=2, state="Learning", step_seconds=0.25, first_merge_time=NOW)
    status = plan_unit(make_unit(report=report, answering_since=NOW), NOW + 5).status
    heal = status.last_heal
    assert heal is not None
    assert (heal.reason, heal.seconds, heal.chip_seconds, heal.steps) == ("NodeLost", 30.0, 240.0, 120)
    assert status.lost is not None and status.lost.by_reason["NodeLost"].steps == 120
    assert (status.heal_start_time, status.heal_reason) == (None, "")


def test_the_pace_and_the_chips_of_a_unit_stand_in_its_status() -> None:
    report = UnitReport(incarnation=2, hosts=2, state="Learning", step_seconds=0.25)
    status = plan_unit(make_unit(report=report, answering_since=NOW), NOW).status
    assert (status.chips, status.step_seconds) == (8, 0.25)
    silent = plan_unit(make_unit(status=status), NOW).status
    assert (silent.chips, silent.step_seconds) == (8, 0.25)


def test_a_unit_that_is_given_up_is_charged_the_heal_that_came_to_nothing() -> None:
    orders = replace(ORDERS, recovery=RecoverySpec(max_restarts=0))
    pods = (make_pod(0, phase="Failed", exit_code=1, finished_at=NOW), make_pod(1))
    status = plan_unit(make_unit(pods=pods, orders=orders), NOW).status
    assert (status.phase, status.lost) == ("Failed", COST)
    assert status.last_failure is not None and status.last_failure.reason == "AppError"
    later = plan_unit(make_unit(pods=pods, orders=orders, status=status), NOW + 9)
    assert later.status.lost == COST, "its chips are given back"


def test_a_unit_that_stops_while_it_heals_is_charged_until_then_once() -> None:
    for stop in ("Suspended", "Finished"):
        orders = replace(ORDERS, stop=stop)
        status = plan_unit(make_unit(orders=orders), NOW).status
        assert (status.phase, status.lost) == (stop, COST)
        assert plan_unit(make_unit(orders=orders, status=status), NOW + 9).status.lost == COST


def test_a_unit_whose_run_is_gone_is_charged_until_then() -> None:
    assert plan_unit(make_unit(orders=None), NOW).status.lost == COST


def test_what_fails_again_before_it_was_merged_is_one_heal_of_the_first_failure() -> None:
    failed = (make_pod(0, phase="Failed", reason="UnexpectedAdmissionError"), make_pod(1))
    again = plan_unit(make_unit(pods=failed), NOW).status
    assert (again.incarnation, again.heal_reason, again.lost) == (3, "NodeLost", None)
    assert again.last_failure is not None and again.last_failure.reason == "AdmissionRejected"
    assert again.heal_start_time == HEALING.heal_start_time

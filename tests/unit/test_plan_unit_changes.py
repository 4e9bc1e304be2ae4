"""A unit whose spec or image changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from objects import TWO_HOSTS
from run_scene import NOW, unit_status

from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_runtime.contract import EXIT_VERSION


def observed(generation: int, **changes: Any) -> UnitObserved:
    """A unit whose first incarnation learns, and whose spec is of this generation."""
    spec = LearnerUnitSpec(
        run="r",
        pool="a",
        accelerator="tpu-v6e-slice",
        topology="2x2",
        batch=8,
        stream=0,
        streams=1,
        image="new",
    )
    orders = Orders(
        stop="",
        finishing=False,
        recovery=RecoverySpec(),
        settings=PodSettings(run="r", image="default", pull_policy="Always", environment={}),
    )
    status = unit_status(gang=1, placed_gang=1, **changes)
    return UnitObserved(
        name="r-a-0",
        namespace="ns",
        uid="u",
        generation=generation,
        spec=spec,
        status=status,
        pods=(),
        orders=orders,
    )


@pytest.mark.parametrize("phase", ["Learning", "Failed"])
def test_a_unit_whose_spec_changed_goes_to_its_next_incarnation_at_no_cost_to_its_budget(phase) -> None:
    spent = (Restart(time=format_time(NOW), reason="AppError"),)
    plan = plan_unit(observed(2, phase=phase, restarts=spent), NOW)
    assert plan.advance
    assert (plan.status.incarnation, plan.status.restart_count, plan.status.observed_generation) == (2, 0, 2)
    assert "SpecChanged" in plan.status.message
    assert len(plan.status.restarts) == (0 if phase == "Failed" else 1), (
        "a unit that was given up begins anew"
    )
    made = plan_unit(replace(observed(2), status=plan.status), NOW)
    assert [pod["spec"]["containers"][0]["image"] for pod in made.create] == ["new"]
    assert not plan_unit(replace(observed(2), status=plan.status), NOW).advance


def test_a_unit_of_another_version_is_tried_for_ever_and_charged_nothing() -> None:
    message = "VersionMismatch: the unit's image speaks protocol 3, the syncer's 4: give both the same image"
    ended = {
        "phase": "Running", "exit_code": EXIT_VERSION, "exit_message": message, "ended_incarnation": 40,
        "finished_at": NOW - 1, "started_at": NOW - 60, "gang": 40, "incarnation": 40, "node": "n",
    }  # fmt: skip
    pods = tuple(PodView(name=f"r-two-0-40-{host}", host=host, unit="r-two-0", **ended) for host in (0, 1))
    past = tuple(Restart(time=format_time(NOW - 600), reason="VersionMismatch") for _ in range(39))
    unit = UnitObserved(
        name="r-two-0", namespace="ns", uid="u", generation=1, spec=TWO_HOSTS, pods=pods,
        status=LearnerUnitStatus(phase="Joining", incarnation=40, gang=40, placed_gang=40, restarts=past),
        orders=Orders(
            stop="", finishing=False, recovery=RecoverySpec(max_restarts=1),
            settings=PodSettings(run="r", image="i", pull_policy="Always", environment={}),
        ),
    )  # fmt: skip
    status = plan_unit(unit, NOW).status
    assert (status.phase, status.incarnation) == ("Healing", 41)
    assert status.last_failure is not None
    assert (status.last_failure.reason, status.last_failure.message) == tuple(message.split(": ", 1))

"""Generated specs through the models and the plans alone: what can be read can be planned. SEED chooses others."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from pydantic import BaseModel, ValidationError
from specs import broken, runs, units

from atoll_operator.api.conditions import EVALUATED, RUN_CONDITIONS
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.crd.tables import pieces
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import view
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.unit import UnitObserved
from atoll_runtime.contract import SIZES, ModelSpec, parse_run
from atoll_runtime.learner import optimiser
from atoll_runtime.model import describe, fits, resolve
from atoll_runtime.sync.fragments import build_layout, cut

pytestmark = pytest.mark.timeout(300)
SEED = int(os.environ.get("SEED") or 20261121)
NOW = 1_800_000_000.0
FEW_UNITS = 16
SETTINGS = PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={})


def many(count: int) -> Any:
    def decorate(test: Any) -> Any:
        checked = settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
        return seed(SEED)(checked(test))

    return decorate


def observed(body: dict[str, Any], spec: TrainingRunSpec) -> RunObserved:
    name = body["metadata"]["name"]
    return RunObserved(
        name=name,
        namespace="ns",
        uid="u",
        generation=1,
        spec=spec,
        status=TrainingRunStatus(),
        settings=pod_settings(name, spec, None, image="runtime", environment={}, pull_policy="IfNotPresent"),
        units={},
    )


def followed(run: RunObserved) -> RunPlan:
    """The plan after all that the first one asks for was done."""
    plan = plan_run(run, NOW)
    made = {
        unit["metadata"]["name"]: UnitFacts(
            name=unit["metadata"]["name"],
            run=run.name,
            status=LearnerUnitStatus(observed_generation=1),
            spec=LearnerUnitSpec.model_validate(unit["spec"]),
            uid=unit["metadata"]["name"],
            generation=1,
        )
        for unit in plan.apply_units
    }
    return plan_run(replace(run, status=plan.status, units=made), NOW + 1)


def conditions(spec: TrainingRunSpec) -> set[str]:
    return {*RUN_CONDITIONS, *([EVALUATED] if spec.evaluation is not None else [])}


def rest_of(spec: LearnerUnitSpec, run: TrainingRunSpec | None) -> UnitObserved:
    """A unit after as many passes as a new one needs for its pods, or for saying that it can have none."""
    wishes: dict[str, Any] = {"stop": "RunNotFound"}
    if run is not None:
        wishes = {"recovery": run.recovery, "settings": SETTINGS}
    unit = UnitObserved(
        now=NOW, name="r-p-0", namespace="ns", uid="u", generation=1, spec=spec, status=LearnerUnitStatus(), pods=(),
        **wishes,
    )  # fmt: skip
    for step in range(3):
        plan = plan_unit(replace(unit, now=NOW + step))
        pods = (*unit.pods, *(view(pod) for pod in plan.create))
        unit = replace(unit, status=plan.status, pods=pods)
    return unit


def read(model: type[BaseModel], spec: Any) -> Any:
    """None for what cannot be read; every problem then names its place."""
    try:
        return model.model_validate(spec)
    except ValidationError as error:
        assert all(problem["loc"] or not isinstance(spec, dict) for problem in error.errors())
        return None


@many(200)
@given(runs(small=True))
def test_a_valid_run_is_planned_and_then_at_rest(body: dict[str, Any]) -> None:
    spec = TrainingRunSpec.model_validate(body["spec"])
    run = observed(body, spec)
    first, plan = plan_run(run, NOW), followed(run)
    assert {condition.type for condition in plan.status.conditions} == conditions(spec)
    assert (plan.apply_units, plan.delete_units) == ((), ())
    assert plan.status.units == plan.status.units_wanted == len(first.apply_units)
    if first.apply:
        contract = parse_run(first.apply[0]["data"]["run.json"])
        assert (contract.model, contract.outer, len(contract.shards)) == (
            spec.model,
            spec.outer,
            spec.syncer.shards,
        )
    for each in first.apply_units[:2]:
        unit = rest_of(LearnerUnitSpec.model_validate(each["spec"]), spec)
        assert unit.status.placement == unit.status.incarnation == 1
        assert {pod.unit for pod in unit.pods} == {unit.name}


@many(100)
@given(runs())
def test_a_valid_run_has_a_model_that_its_learners_can_train(body: dict[str, Any]) -> None:
    spec = TrainingRunSpec.model_validate(body["spec"])
    optimiser.build(spec.inner, {"matrix": True})
    if spec.model.task is not None:
        return  # its code alone knows
    fits(resolve(spec.model), spec.inner.mesh)
    layout = build_layout(describe(spec.model), spec.outer.fragments, spec.syncer.shards)
    assert len(layout.fragments) == spec.outer.fragments * spec.syncer.shards


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("experts", "hidden"), [(0, 0), (8, 64)])
def test_the_pieces_of_a_model_are_counted_as_the_runtime_cuts_it(
    tied: bool, experts: int, hidden: int
) -> None:
    sizes = [
        SIZES["1m"].model_copy(
            update={"layers": layers, "tied": tied, "experts": experts, "expert_hidden": hidden}
        )
        for layers in (1, 7)
    ]
    for size in sizes:
        tensors = describe(ModelSpec(dimensions=size))
        assert pieces(size) == sum(len(cut(tensor)) for tensor in tensors)


@many(200)
@given(broken(runs(small=True)))
def test_a_broken_run_is_not_read_or_planned_all_the_same(body: dict[str, Any]) -> None:
    spec = read(TrainingRunSpec, body.get("spec"))
    if spec is None or (spec.units or 0) + sum(pool.units for pool in spec.pools) > FEW_UNITS:
        return
    plan = followed(observed(body, spec))
    assert {condition.type for condition in plan.status.conditions} == conditions(spec)


@many(200)
@given(units())
def test_a_unit_made_by_hand_gets_its_pods_when_there_is_its_run(body: dict[str, Any]) -> None:
    spec = LearnerUnitSpec.model_validate(body["spec"])
    run = TrainingRunSpec.model_validate(
        {
            "model": {"preset": "1m"},
            "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
            "target": {"globalSteps": 100},
            "checkpoint": {"uri": "gs://bucket/run"},
            "pools": [{"name": "p", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 1}],
        }
    )
    with_run, without = rest_of(spec, run), rest_of(spec, None)
    assert with_run.status.placement == 1
    assert with_run.pods
    assert (without.pods, without.status.conditions[0].reason) == ((), "RunNotFound")


@many(200)
@given(broken(units()))
def test_a_broken_unit_is_not_read_or_says_what_it_waits_for(body: dict[str, Any]) -> None:
    spec = read(LearnerUnitSpec, body.get("spec"))
    if spec is None:
        return
    run = TrainingRunSpec.model_construct(recovery=TrainingRunSpec.model_fields["recovery"].get_default())
    unit = rest_of(spec, run)
    scheduled = next(item for item in unit.status.conditions if item.type == "Scheduled")
    assert unit.pods or (scheduled.reason == "SpecInvalid" and scheduled.message)

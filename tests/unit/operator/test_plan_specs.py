"""Generated specs: what the models read can be trained. A control test reconciles a tenth in the memory world.

SEED chooses others.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed, settings
from pydantic import BaseModel, ValidationError
from specs import broken, runs, units

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.crd.schema import pieces
from atoll_operator.plan.pods.topology import slice_of
from atoll_runtime.contract import SIZES, ModelSpec
from atoll_runtime.learner import optimiser
from atoll_runtime.model import describe, fits, resolve
from atoll_runtime.sync.fragments import build_layout, cut

pytestmark = pytest.mark.timeout(300)
SEED = int(os.environ.get("SEED") or 20261121)


def many(count: int) -> Any:
    def decorate(test: Any) -> Any:
        checked = settings(max_examples=count, database=None, suppress_health_check=list(HealthCheck))
        return seed(SEED)(checked(test))

    return decorate


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
    for layers in (1, 7):
        update = {"layers": layers, "tied": tied, "experts": experts, "expert_hidden": hidden}
        size = SIZES["1m"].model_copy(update=update)
        tensors = describe(ModelSpec(dimensions=size))
        assert pieces(size) == sum(len(cut(tensor)) for tensor in tensors)


@many(200)
@given(broken(runs(small=True)) | broken(units()))
def test_a_broken_spec_is_read_or_its_problems_name_their_places(body: dict[str, Any]) -> None:
    model: type[BaseModel] = TrainingRunSpec if body["kind"] == "TrainingRun" else LearnerUnitSpec
    spec = body.get("spec")
    try:
        model.model_validate(spec)
    except ValidationError as error:
        assert all(problem["loc"] or not isinstance(spec, dict) for problem in error.errors())


@many(100)
@given(units())
def test_a_valid_unit_has_a_slice(body: dict[str, Any]) -> None:
    spec = LearnerUnitSpec.model_validate(body["spec"])
    assert slice_of(spec.accelerator, spec.topology, spec.machine_type).hosts >= 1

"""Generated specs: the CEL library accepts valid ones and refuses damaged ones by the name of a field; what the models
read can be trained. SEED chooses others.

A control test compares a tenth of the verdicts with those of a real API server, and reconciles in the memory world.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from drawn import PARTS, SEED, drawn
from hypothesis import HealthCheck, given, seed, settings
from pydantic import ValidationError
from refusals import MODELS
from specs import runs

from atoll_cli.simulate.admission import faults
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.crd.schema import pieces
from atoll_runtime.contract import SIZES, ModelSpec
from atoll_runtime.learner import optimiser
from atoll_runtime.model import describe, fits, resolve
from atoll_runtime.protocol.fragments import build_layout, cut

pytestmark = pytest.mark.timeout(300)
FIELD = re.compile(r"^(spec(\.\S+?|\[\d+\])*: |metadata\.name )")


@pytest.mark.parametrize("part", PARTS)
def test_a_spec_is_accepted_or_refused_by_the_name_of_a_field(part: str) -> None:
    bodies = drawn(part)
    found = [faults(body) for body in bodies]
    assert [line for lines in found for line in lines if not FIELD.match(line)] == []
    refused = sum(map(bool, found)) / len(found)
    assert refused == 0 if "broken" not in part else 0.5 < refused < 1
    for body in bodies:
        try:
            MODELS[body["kind"]].model_validate(body.get("spec"))
        except ValidationError as error:
            places = [problem["loc"] for problem in error.errors()]
            assert all(places) or not isinstance(body.get("spec"), dict), "the operator's message names them"


@seed(SEED)
@settings(max_examples=100, database=None, suppress_health_check=list(HealthCheck))
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

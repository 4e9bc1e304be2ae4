"""The definitions of the API, and what users read about a field. Generated specs: the CEL library accepts valid ones
and refuses damaged ones by the name of a field; what the models read can be trained. SEED chooses others. A control
test compares a tenth of the verdicts with those of a real API server, and reconciles in the memory world."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any, get_type_hints

import pytest
from crds import PAGE, RESOURCES, fields, files
from crds import PARTS as SECTIONS
from hypothesis import HealthCheck, given, seed, settings
from pydantic import AliasChoices, ValidationError
from pydantic.fields import FieldInfo
from refusals import MODELS, SCHEMAS
from schema import default, limits, pieces, structural
from specs import PARTS, SEED, admitted_pieces, drawn, runs

from atoll_cli.simulate.admission import faults
from atoll_cli.views import HeldOutView, LedgerView, RunView, UnitView
from atoll_operator.api.common import ACCELERATORS
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.pods.topology import GENERATIONS
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
def test_pieces_of_a_model_are_counted_as_the_runtime_cuts_it(tied: bool, experts: int, hidden: int) -> None:
    for layers in (1, 7):
        update = {"layers": layers, "tied": tied, "experts": experts, "expert_hidden": hidden}
        size = SIZES["1m"].model_copy(update=update)
        tensors = describe(ModelSpec(dimensions=size))
        assert pieces(size) == admitted_pieces(tensors) <= len(cut(tensors))


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.plural)
def test_every_field_has_a_meaning_and_a_spec_also_says_limits_and_defaults(resource) -> None:
    parts = structural(resource.model)["properties"]
    page = files()[PAGE]
    for part in SECTIONS:
        section = page.split(f"## {resource.model.__name__}.{part}\n")[1].split("\n\n")[0]
        for path, field, required in fields(parts[part]):
            told, said = field["description"], (limits(field), default(field))
            assert all(text in told for text in said)
            assert functools.reduce(lambda left, text: left.replace(text, ""), said, told).strip(), path
            if field.get("default") not in (None, "", {}, []) and "properties" not in field:
                assert default(field)
            assert f"| `{path}`{' *' if required else ''} | " in section


def test_items_of_a_list_have_no_defaults_but_their_descriptions_say_them() -> None:
    def defaults(schema: dict[str, Any], path: str, listed: bool) -> Iterator[str]:
        if listed and "default" in schema:
            yield path
        for name, child in schema.get("properties", {}).items():
            yield from defaults(child, f"{path}.{name}", listed)
        for inner in ("items", "additionalProperties"):
            if inner in schema:
                yield from defaults(schema[inner], f"{path}[]", True)

    for kind, schema in SCHEMAS.items():
        assert list(defaults(schema, kind, False)) == []
    pool = SCHEMAS["TrainingRun"]["properties"]["spec"]["properties"]["pools"]["items"]["properties"]
    assert pool["capacity"]["description"].endswith("Default: OnDemand.")
    assert pool["slicesPerUnit"]["description"].endswith("Default: 1.")


def test_the_api_offers_the_accelerators_that_the_operator_can_plan() -> None:
    assert list(ACCELERATORS) == [generation.accelerator for generation in GENERATIONS]


VIEWS = [
    (RunView, "TrainingRun", ()), (HeldOutView, "TrainingRun", ("status", "evaluation")),
    (UnitView, "LearnerUnit", ()), (LedgerView, "LearnerUnit", ("status", "ledger")),
    (LedgerView, "TrainingRun", ("status", "ledger")),
]  # fmt: skip


@pytest.mark.parametrize(("view", "kind", "place"), VIEWS)
def test_the_definitions_hold_every_field_that_commands_read(
    view: type, kind: str, place: tuple[str, ...]
) -> None:
    """The API server prunes others."""
    for name, hint in get_type_hints(view, include_extras=True).items():
        alias: Any = FieldInfo.from_annotation(hint).validation_alias
        for each in alias.choices if isinstance(alias, AliasChoices) else [alias]:
            schema: Any = SCHEMAS[kind]
            for step in (*place, *(each.path if each else [name])):
                if step == "metadata":
                    break
                schema = schema["properties"][step]

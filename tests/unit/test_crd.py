"""The definitions of the API, and what users read about a field."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import SCHEMAS

from atoll_operator.api.common import ACCELERATORS
from atoll_operator.crd import generate
from atoll_operator.crd.docs import default, fields, limits, table, tell
from atoll_operator.crd.generate import PAGE, RESOURCES, files
from atoll_operator.crd.schema import structural
from atoll_operator.plan.pods.topology import GENERATIONS


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.plural)
def test_every_field_of_a_spec_says_what_it_means_its_limits_and_its_default(resource) -> None:
    plain, told = (structural(resource.model)["properties"]["spec"] for _ in range(2))
    tell(told)
    seen = {path: field["description"] for path, field, _ in fields(told)}
    for path, field, _ in fields(plain):
        assert field.get("description"), f"{path} has no docstring"
        if field.get("default") not in (None, "", {}, []) and "properties" not in field:
            assert f"Default: {default(field)[len('Default: ') :]}" in seen[path]
            assert default(field)
        if "minimum" in field and "type" in field:
            assert limits(field) and limits(field) in seen[path]


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.plural)
def test_every_field_of_a_status_says_what_it_means_and_is_on_the_page(resource) -> None:
    status = structural(resource.model)["properties"]["status"]
    page = files()[PAGE]
    section = page.split(f"## {resource.model.__name__}.status\n")[1].split("\n\n")[0]
    for path, field, required in fields(status):
        assert field.get("description"), f"{path} has no docstring"
        assert f"| `{path}`{' *' if required else ''} | " in section


def test_limits_are_a_sentence() -> None:
    assert limits({"type": "integer", "minimum": 1, "maximum": 64}) == "From 1 to 64."
    assert limits({"type": "integer", "minimum": 0}) == "0 or more."
    assert limits({"type": "number", "minimum": 0, "exclusiveMinimum": True}) == "Above 0."
    within = {"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 1e6}
    assert limits(within) == "Above 0, up to 1000000."
    below = {"type": "number", "minimum": 0, "maximum": 1, "exclusiveMaximum": True}
    assert limits(below) == "From 0, below 1."
    assert limits({"type": "array", "maxItems": 16}) == "At most 16."
    assert limits({"type": "string", "maxLength": 63}) == ""


def test_the_default_of_an_object_is_what_its_fields_do_not_say_themselves() -> None:
    cpu = {
        "type": "object",
        "properties": {"cpu": {"type": "string", "default": "1"}, "more": {"type": "object"}},
    }
    assert default({**cpu, "default": {"cpu": "1", "more": {}}}) == ""
    assert default({**cpu, "default": {"cpu": "2", "more": {}}}) == 'Default: {"cpu": "2"}.'
    assert default({"type": "string", "default": "bf16"}) == "Default: bf16."
    assert default({"type": "boolean", "default": False}) == "Default: false."
    assert default({"type": "array", "default": []}) == ""


def test_the_table_marks_what_is_required_and_names_the_values_of_an_enumeration() -> None:
    items = {
        "type": "object",
        "properties": {"kind": {"type": "string", "enum": ["A", "B"], "description": "One."}},
    }
    schema = {
        "properties": {"pools": {"type": "array", "items": items, "description": "Some | all."}},
        "required": ["pools"],
    }
    assert table(schema)[2:] == [
        "| `pools` * | list of objects | Some \\| all. |",
        "| `pools[].kind` | `A`, `B` | One. |",
    ]


def test_the_committed_definitions_are_those_of_the_models() -> None:
    for name, content in generate.files().items():
        assert (generate.REPOSITORY / name).read_text() == content


def test_the_check_finds_a_definition_that_differs(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["generate", "--root", str(tmp_path)])
    assert generate.main() == 0
    monkeypatch.setattr(sys, "argv", ["generate", "--root", str(tmp_path), "--check"])
    assert generate.main() == 0
    (tmp_path / "crds" / "atoll.dev_learnerunits.yaml").write_text("")
    assert generate.main() == 1
    assert "crds/atoll.dev_learnerunits.yaml" in capsys.readouterr().err


def test_the_api_server_adds_nothing_to_an_item_of_a_list_that_somebody_applied() -> None:
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


def test_a_default_that_the_api_server_does_not_fill_in_is_told() -> None:
    pool = SCHEMAS["TrainingRun"]["properties"]["spec"]["properties"]["pools"]["items"]["properties"]
    assert pool["capacity"]["description"].endswith("Default: OnDemand.")
    assert pool["slicesPerUnit"]["description"].endswith("Default: 1.")


def test_the_api_offers_the_accelerators_that_the_operator_can_plan() -> None:
    assert list(ACCELERATORS) == [generation.accelerator for generation in GENERATIONS]

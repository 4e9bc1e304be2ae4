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
from atoll_operator.crd.generate import PAGE, RESOURCES, default, fields, files, limits, table, tell
from atoll_operator.crd.schema import structural
from atoll_operator.plan.pods.topology import GENERATIONS


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.plural)
def test_every_field_has_a_meaning_and_a_spec_also_says_limits_and_defaults(resource) -> None:
    plain, told = (structural(resource.model)["properties"] for _ in range(2))
    tell(told["spec"])
    seen = {path: field["description"] for path, field, _ in fields(told["spec"])}
    for path, field, _ in fields(plain["spec"]):
        assert field.get("description"), f"{path} has no docstring"
        assert default(field) in seen[path] and limits(field) in seen[path]
        if field.get("default") not in (None, "", {}, []) and "properties" not in field:
            assert default(field)
    section = files()[PAGE].split(f"## {resource.model.__name__}.status\n")[1].split("\n\n")[0]
    for path, field, required in fields(plain["status"]):
        assert field.get("description"), f"{path} has no docstring"
        assert f"| `{path}`{' *' if required else ''} | " in section


NUMBER = {"type": "number", "minimum": 0}
CPU = {
    "type": "object",
    "properties": {"cpu": {"type": "string", "default": "1"}, "more": {"type": "object"}},
}
SENTENCES: list[tuple[Any, dict[str, Any], str]] = [
    (limits, {"type": "integer", "minimum": 1, "maximum": 64}, "From 1 to 64."),
    (limits, {"type": "integer", "minimum": 0}, "0 or more."),
    (limits, {**NUMBER, "exclusiveMinimum": True}, "Above 0."),
    (limits, {**NUMBER, "exclusiveMinimum": True, "maximum": 1e6}, "Above 0, up to 1000000."),
    (limits, {**NUMBER, "maximum": 1, "exclusiveMaximum": True}, "From 0, below 1."),
    (limits, {"type": "array", "maxItems": 16}, "At most 16."),
    (limits, {"type": "string", "maxLength": 63}, ""),
    (default, {**CPU, "default": {"cpu": "1", "more": {}}}, ""),
    (default, {**CPU, "default": {"cpu": "2", "more": {}}}, 'Default: {"cpu": "2"}.'),
    (default, {"type": "string", "default": "bf16"}, "Default: bf16."),
    (default, {"type": "boolean", "default": False}, "Default: false."),
    (default, {"type": "array", "default": []}, ""),
]


def test_limits_and_defaults_are_sentences_and_the_table_marks_what_is_required() -> None:
    for say, schema, sentence in SENTENCES:
        assert say(schema) == sentence, schema
    kind = {"type": "string", "enum": ["A", "B"], "description": "One."}
    items = {"type": "object", "properties": {"kind": kind}}
    pools = {"type": "array", "items": items, "description": "Some | all."}
    assert table({"properties": {"pools": pools}, "required": ["pools"]})[2:] == [
        "| `pools` * | list of objects | Some \\| all. |",
        "| `pools[].kind` | `A`, `B` | One. |",
    ]


def test_the_committed_definitions_are_those_of_the_models() -> None:
    for name, content in generate.files().items():
        assert (generate.REPOSITORY / name).read_text() == content


def test_the_check_finds_a_definition_that_differs(tmp_path: Path, monkeypatch, capsys) -> None:
    def check(*options: str) -> int:
        monkeypatch.setattr(sys, "argv", ["generate", "--root", str(tmp_path), *options])
        return generate.main()

    assert (check(), check("--check")) == (0, 0)
    (tmp_path / "crds" / "atoll.dev_learnerunits.yaml").write_text("")
    assert check("--check") == 1
    assert "crds/atoll.dev_learnerunits.yaml" in capsys.readouterr().err


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

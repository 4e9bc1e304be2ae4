"""What users read of a field."""

from __future__ import annotations

import pytest

from atoll_operator.crd.generate import PAGE, RESOURCES, files
from atoll_operator.crd.schema import structural
from atoll_operator.crd.wording import default, fields, limits, table, tell


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
        if "minimum" in field:
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

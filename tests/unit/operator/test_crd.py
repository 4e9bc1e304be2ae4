"""The definitions of the API, and what users read about a field."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import pytest
from crds import PAGE, PARTS, RESOURCES, fields, files
from refusals import SCHEMAS

from atoll_operator.api.common import ACCELERATORS
from atoll_operator.crd.schema import default, limits, structural
from atoll_operator.plan.pods.topology import GENERATIONS


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.plural)
def test_every_field_has_a_meaning_and_a_spec_also_says_limits_and_defaults(resource) -> None:
    parts = structural(resource.model)["properties"]
    page = files()[PAGE]
    for part in PARTS:
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

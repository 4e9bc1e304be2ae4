"""Descriptions of fields: for `kubectl explain`, and for docs/fields.md.

kubectl shows a field's type, whether it is required, and its description. So the description has limits and default.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from atoll_operator.crd.schema import Schema

NOTHING: tuple[object, ...] = (None, "", {}, [])
"""Defaults that are not worth telling: the field is absent."""


def tell(schema: Schema) -> None:
    """Add limits and default to each description below `schema`, in place."""
    for _, field, _ in fields(schema):
        parts = field.get("description", ""), limits(field), default(field)
        field["description"] = " ".join(part for part in parts if part)


def fields(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Each field below `schema`, outer fields first: its path such as `pools[].name`, its schema, whether it is
    required."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        yield here, field, name in schema.get("required", ())
        yield from fields(field, here)
        if "items" in field:
            yield from fields(field["items"], f"{here}[]")


def limits(field: Schema) -> str:
    """Limits of a number or a list as a sentence; empty if there are none."""
    if field.get("type") == "array":
        return f"At most {field['maxItems']}." if "maxItems" in field else ""
    if field.get("type") not in ("integer", "number") or "minimum" not in field:
        return ""
    low, above = _plain(field["minimum"]), field.get("exclusiveMinimum")
    if "maximum" not in field:
        return f"Above {low}." if above else f"{low} or more."
    begins, high = f"{'Above' if above else 'From'} {low}", _plain(field["maximum"])
    if field.get("exclusiveMaximum"):
        return f"{begins}, below {high}."
    return f"{begins}, up to {high}." if above else f"{begins} to {high}."


def default(field: Schema) -> str:
    """The default as a sentence; empty if there is none, or if the fields below have it."""
    value = _beyond(field.get("default"), field.get("properties", {}))
    if value in NOTHING:
        return ""
    return f"Default: {value if isinstance(value, str) else json.dumps(value)}."


def table(schema: Schema) -> list[str]:
    """Lines of a Markdown table of the fields below `schema`, with the descriptions that `tell` made."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for path, field, required in fields(schema):
        meaning = field["description"].replace("|", "\\|")
        lines.append(f"| `{path}`{' *' if required else ''} | {_kind(field)} | {meaning} |")
    return lines


def _kind(field: Schema) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("x-kubernetes-int-or-string"):
        return "quantity"
    if field.get("type") == "array":
        return f"list of {_kind(field['items'])}s"
    if "additionalProperties" in field:
        return f"map to {_kind(field['additionalProperties'])}"
    return str(field["type"])


def _plain(number: float) -> str:
    return str(int(number)) if number == int(number) else str(number)


def _beyond(value: Any, children: Mapping[str, Schema]) -> Any:
    """The part of a default that the defaults of the fields below do not say."""
    if not isinstance(value, dict) or not children:
        return value
    found = {}
    for name, item in value.items():
        rest = _beyond(item, children[name].get("properties", {}))
        if rest not in NOTHING and item != children[name].get("default"):
            found[name] = rest
    return found

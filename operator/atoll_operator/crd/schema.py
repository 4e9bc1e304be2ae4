"""From pydantic's JSON schema to the structural schema that the API server takes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from atoll_operator.crd.tables import with_tables
from atoll_runtime.contract.rules import KEY, Rule

Schema = dict[str, Any]
_KEPT = (
    "type", "description", "format", "default", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)  # fmt: skip

UNSEEN = {"observedGeneration": -1}
"""Status of an object that the operator has not seen. Tools that follow kstatus would take an empty one for current."""


def structural(model: type[BaseModel]) -> Schema:
    """The schema of `model` with references inlined. The API server prunes unknown fields.

    Raises:
        TypeError: a construct that a structural schema cannot express; the message names its place.
    """
    schema = model.model_json_schema(by_alias=True)
    result = _convert(schema, schema.get("$defs", {}), model.__name__)
    if "status" in result["properties"]:
        _drop_defaults(result["properties"]["status"])
        result["properties"]["status"]["default"] = UNSEEN
    return result


def drop_defaults_in_lists(schema: Schema) -> None:
    """Removes the defaults of fields in list items, in place; the reader of an item fills them in.

    GitOps tools compare lists of a custom resource as a whole. A default that the API server adds to an item would be a
    difference that no sync removes.
    """
    for child in schema.get("properties", {}).values():
        drop_defaults_in_lists(child)
    if "items" in schema:
        _drop_defaults(schema["items"])


def _convert(node: Schema, definitions: dict[str, Schema], place: str) -> Schema:
    if "$ref" in node:
        model = definitions[node["$ref"].rsplit("/", 1)[-1]]
        return _convert(_merged(model, node, "$ref"), definitions, place)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(options) != 1:
            raise TypeError(f"{place}: a union cannot be expressed in a structural schema")
        return _convert(_merged(options[0], node, "anyOf", "default"), definitions, place)
    if "prefixItems" in node:
        raise TypeError(f"{place}: a tuple of fixed length cannot be expressed in a structural schema")
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if "default" in result:
        result["default"] = _without_nulls(result["default"])
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in node:
        result["enum"] = [node["const"]]
    for bound in ("Minimum", "Maximum"):
        if f"exclusive{bound}" in node:
            result |= {bound.lower(): node[f"exclusive{bound}"], f"exclusive{bound}": True}
    if result.get("type") == "integer":
        result["format"] = "int64"
    if KEY in node:
        result[KEY] = [{name: with_tables(text) for name, text in rule.items()} for rule in node[KEY]]
    children = node.get("properties", {})
    if children:
        parts = {name: _convert(part, definitions, f"{place}.{name}") for name, part in children.items()}
        result |= {"properties": parts} | ({"required": [*node["required"]]} if "required" in node else {})
    elif isinstance(values := node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(values, definitions, f"{place}.*")
        if (most := result.pop("maxLength", node.get("maxProperties"))) is not None:
            result["maxProperties"] = most
    if "items" in node:
        result["items"] = _convert(node["items"], definitions, f"{place}[]")
    return result


def _merged(inner: Schema, outer: Schema, *without: str) -> Schema:
    """What a model says of itself, and over that what a field of its kind says; the rules of both."""
    rules: list[Rule] = [*inner.get(KEY, ()), *outer.get(KEY, ())]
    beside = {key: value for key, value in outer.items() if key not in without}
    return {**inner, **beside, **({KEY: rules} if rules else {})}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _drop_defaults(schema: Schema) -> None:
    """The operator writes what it knows; the API server must not fill in the rest."""
    schema.pop("default", None)
    for child in schema.get("properties", {}).values():
        _drop_defaults(child)
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            _drop_defaults(schema[inner])

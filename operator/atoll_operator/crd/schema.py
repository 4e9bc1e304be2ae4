"""From pydantic's JSON schema to the structural schema that the API server takes."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

Schema = dict[str, Any]
_KEPT = (
    "type", "description", "format", "default", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip


def structural(model: type[BaseModel]) -> Schema:
    """The schema of `model` with references inlined; extra keys are pruned by the API server, not refused.

    Raises:
        TypeError: a construct that a structural schema cannot express; the message names its place.
    """
    schema = model.model_json_schema(by_alias=True)
    result = _convert(schema, schema.get("$defs", {}), model.__name__)
    if "status" in result["properties"]:
        _drop_defaults(result["properties"]["status"])
    return result


def without_defaults_in_lists(schema: Schema) -> None:
    """Takes the defaults of fields of list items away, in place; whoever reads an item fills them in.

    GitOps tools compare the lists of a custom resource as wholes: what the API server adds to an item that somebody
    applied is a difference that no sync removes.
    """
    for child in schema.get("properties", {}).values():
        without_defaults_in_lists(child)
    if "items" in schema:
        _drop_defaults(schema["items"])


def _convert(node: Schema, definitions: dict[str, Schema], place: str) -> Schema:
    if "$ref" in node:
        name = node["$ref"].rsplit("/", 1)[-1]
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return _convert({**definitions[name], **beside}, definitions, place)
    if "anyOf" in node:
        options = [option for option in node["anyOf"] if option.get("type") != "null"]
        if len(options) != 1:
            raise TypeError(f"{place}: a union cannot be expressed in a structural schema")
        beside = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
        return _convert({**options[0], **beside}, definitions, place)
    if node.get("x-kubernetes-int-or-string"):
        kept: Schema = {key: node[key] for key in ("default", "description", "maxLength") if key in node}
        return {**kept, "x-kubernetes-int-or-string": True}
    if "prefixItems" in node:
        raise TypeError(f"{place}: a tuple of fixed length cannot be expressed in a structural schema")
    result: Schema = {key: node[key] for key in _KEPT if key in node}
    if "default" in result:
        result["default"] = _without_nulls(result["default"])
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in node:
        result["enum"] = [node["const"]]
    for bound in ("minimum", "maximum"):
        exclusive = "exclusive" + bound.capitalize()
        if exclusive in node:
            result[bound] = node[exclusive]
            result[exclusive] = True
    if result.get("type") == "integer":
        result["format"] = "int64"
    if "properties" in node:
        result["properties"] = {
            key: _convert(value, definitions, f"{place}.{key}") for key, value in node["properties"].items()
        }
        if required := node.get("required"):
            result["required"] = list(required)
    elif isinstance(node.get("additionalProperties"), dict):
        values = _convert(node["additionalProperties"], definitions, f"{place}.*")
        result["additionalProperties"] = values
        if "maxProperties" in node or "maxLength" in node:
            result["maxProperties"] = node.get("maxProperties", node.get("maxLength"))
            result.pop("maxLength", None)
    if "items" in node:
        result["items"] = _convert(node["items"], definitions, f"{place}[]")
    return result


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value


def _drop_defaults(schema: Schema) -> None:
    """The operator writes what is the case; the API server must not fill in what is not known."""
    schema.pop("default", None)
    for child in schema.get("properties", {}).values():
        _drop_defaults(child)
    for inner in ("items", "additionalProperties"):
        if inner in schema:
            _drop_defaults(schema[inner])

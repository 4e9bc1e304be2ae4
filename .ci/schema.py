"""Converts pydantic's JSON schema to the structural schema that the API server accepts; `crds.py` writes it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from atoll_cli.simulate.admission import Schema, without_nulls
from atoll_operator.plan.pods.names import EVALUATED_LIMIT, NAMES_LIMIT, UNIT_NAME_LIMIT
from atoll_operator.plan.pods.template import PATHS, VOLUMES
from atoll_operator.plan.pods.topology import CUBE, GENERATIONS, Generation, offers
from atoll_runtime.contract import SIZES, Codec, Dimensions
from atoll_runtime.contract.rules import KEY, Rule

_KEPT = (
    "type", "description", "format", "default", "pattern", "enum", "minimum", "maximum", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties", "x-kubernetes-int-or-string", "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys", "x-kubernetes-preserve-unknown-fields",
)  # fmt: skip

STATUS: Schema = {
    # Of an object that the operator has not seen. Tools that follow kstatus treat an empty status as current.
    "default": {"observedGeneration": -1},
    # The operator alone writes a status, always as a whole. A write costs the API server 30 % less if `managedFields`
    # need not list every field.
    "x-kubernetes-map-type": "atomic",
}
"""Keys of the schema of a status."""


def structural(model: type[BaseModel]) -> Schema:
    """The schema of `model` with references inlined. The API server prunes unknown fields.

    Descriptions also state limits and default, because `kubectl explain` shows only the description, the type, and
    whether the field is required.

    Raises:
        TypeError: a construct that a structural schema cannot express; the message names its place.
    """
    schema = model.model_json_schema(by_alias=True)
    result = _convert(schema, schema.get("$defs", {}), model.__name__)
    if "status" in result["properties"]:
        result["properties"]["status"] |= STATUS
    return result


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
    if ".status" in place:  # the operator writes what it knows; the API server must not fill in the rest
        result.pop("default", None)
    elif "default" in result:
        result["default"] = without_nulls(result["default"])
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
    if "description" in result:
        text = " ".join(result["description"].split())
        result["description"] = " ".join(filter(None, (text, limits(result), default(result))))
    if "[]" in place:
        # GitOps tools compare lists of a custom resource as a whole. A default that the API server adds to an item
        # would be a difference that no sync removes. The code that reads an item fills it in.
        result.pop("default", None)
    return result


def _merged(inner: Schema, outer: Schema, *without: str) -> Schema:
    """Merge the schema of a model with that of a field of this type. The field's keys win; rules of both are kept."""
    rules: list[Rule] = [*inner.get(KEY, ()), *outer.get(KEY, ())]
    beside = {key: value for key, value in outer.items() if key not in without}
    return {**inner, **beside, **({KEY: rules} if rules else {})}


NOTHING: tuple[object, ...] = (None, "", {}, [])
"""Defaults that descriptions omit, because the field is then absent."""


def limits(field: Schema) -> str:
    """Limits of a number or a list as a sentence; empty if there are none."""
    if field.get("type") == "array":
        return f"At most {field['maxItems']}." if "maxItems" in field else ""
    if field.get("type") not in ("integer", "number") or "minimum" not in field:
        return ""
    low, above = str(field["minimum"]).removesuffix(".0"), field.get("exclusiveMinimum")
    if "maximum" not in field:
        return f"Above {low}." if above else f"{low} or more."
    begins, high = f"{'Above' if above else 'From'} {low}", str(field["maximum"]).removesuffix(".0")
    if field.get("exclusiveMaximum"):
        return f"{begins}, below {high}."
    return f"{begins}, up to {high}." if above else f"{begins} to {high}."


def default(field: Schema) -> str:
    """The default as a sentence; empty if there is none, or if the nested fields have it."""
    value = _beyond(field.get("default"), field.get("properties", {}))
    if value in NOTHING:
        return ""
    return f"Default: {value if isinstance(value, str) else json.dumps(value)}."


def _beyond(value: Any, children: Mapping[str, Schema]) -> Any:
    """Return the part of a default that the defaults of the nested fields do not give."""
    if not isinstance(value, dict) or not children:
        return value
    found = {}
    for name, item in value.items():
        rest = _beyond(item, children[name].get("properties", {}))
        if rest not in NOTHING and item != children[name].get("default"):
            found[name] = rest
    return found


KERNEL_PATHS = ("/proc", "/sys")
"""Container runtimes refuse mounts there, or mount their own over them."""


def pieces(size: Dimensions) -> int:
    """Number of pieces that a decoder of this size can be cut into."""
    return size.layers * (13 if size.experts else 9) + (2 if size.tied else 3)


def with_tables(text: str) -> str:
    """Return a rule or a message with its constants replaced by their values."""
    return re.sub(r"\b[A-Z]+_?[A-Z_]*[A-Z]\b", lambda name: _TEXTS.get(name[0], name[0]), text)


_SLICES = [
    (generation, machine, topology)
    for generation in GENERATIONS
    for machine in generation.machines
    for topology in machine.topologies
]
_CUBES = [(each, machine) for each in GENERATIONS for machine in each.machines if machine.cubes]
_FLEXIBLE = [generation for generation in GENERATIONS if generation.flex_start]


def _one_host(generations: Iterable[Generation]) -> Iterator[str]:
    """Slices of one host, with the machine type, and also without it if only one type has the topology."""
    for generation, machine, topology in _SLICES:
        if generation in generations and machine.hosts(topology) == 1:
            yield f"{generation.accelerator} {topology} {machine.name}"
            if topology not in generation.ambiguous():
                yield f"{generation.accelerator} {topology}"


TABLES: dict[str, Any] = {
    "TOPOLOGIES": list(dict.fromkeys(f"{each.accelerator} {topology}" for each, _, topology in _SLICES)),
    "MACHINES": [f"{each.accelerator} {topology} {machine.name}" for each, machine, topology in _SLICES],
    "AMBIGUOUS": [f"{each.accelerator} {topology}" for each in GENERATIONS for topology in each.ambiguous()],
    "CUBE_CHIPS": {each.accelerator: machine.cubes * CUBE**3 for each, machine in _CUBES},
    "CUBE_MACHINES": [f"{each.accelerator} {machine.name}" for each, machine in _CUBES],
    "ONE_HOST": list(_one_host(GENERATIONS)),
    "FLEX_START": list(_one_host(_FLEXIBLE)),
    "FLEX_ACCELERATORS": [each.accelerator for each in _FLEXIBLE],
    "OFFERS": {each.accelerator: offers(each) for each in GENERATIONS},
    "TWO_DEVICES_PER_CHIP": [each.accelerator for each in GENERATIONS if each.devices_per_chip == 2],
    "CODECS": {name: number for number, name in enumerate(get_args(Codec))},
    "PRESET_HEADS": {
        name: math.gcd(size.heads, size.kv_heads, size.hidden, size.expert_hidden)
        for name, size in SIZES.items()
    },
    "PRESET_EXPERTS": {name: max(size.experts, 1) for name, size in SIZES.items()},
    "PRESET_PIECES": {name: pieces(size) for name, size in SIZES.items()},
    "NAMES_LIMIT": NAMES_LIMIT,
    "EVALUATED_LIMIT": EVALUATED_LIMIT,
    "UNIT_NAME_LIMIT": UNIT_NAME_LIMIT,
    "OUR_VOLUMES": list(VOLUMES),
    "OUR_PATHS": [*PATHS, *KERNEL_PATHS],
}
"""Values of the constants that rules name in capitals."""
_TEXTS = {name: str(value) for name, value in TABLES.items()}
"""Python's `str` of these strings, numbers, lists and maps is valid CEL."""

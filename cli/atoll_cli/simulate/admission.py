"""Finds what the API server would refuse in a run or a unit, with the models and the CRDs' patterns and CEL rules.
`schemas.json` has the schemas of the CRDs; `make crds` writes them all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import cel
from pydantic import BaseModel, ValidationError

from atoll_operator.api.group import API_VERSION, RUN_KIND, UNIT_KIND
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunSpec

Schema = dict[str, Any]
TOP = ("apiVersion", "kind", "metadata", "spec", "status")
SCALES = {"m": 1e-3, "": 1.0, **{letter: 1e3**power for power, letter in enumerate("kMGTPE", 1)}}
SCALES |= {f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", 1)}
"""Factors of the suffixes of Kubernetes quantities."""


def faults(manifest: Mapping[str, Any]) -> list[str]:
    """One line for each fault, such as `spec.pools[0].units: …`. Empty if the API server would accept the object."""
    kind = UNIT_KIND if manifest.get("kind") == UNIT_KIND else RUN_KIND
    schema = _schemas()[kind]
    found = list(_of_top(manifest))
    given = without_nulls(manifest.get("spec"))
    spec: BaseModel | None = None
    try:
        spec = _SPECS[kind].model_validate_json(json.dumps(given), strict=True)
    except ValidationError as error:
        wrong = error.errors(include_url=False)
        # Pydantic counts only the valid items of a list, so it also reports lists with a wrong item as too short.
        places = {each["loc"][:end] for each in wrong for end in range(len(each["loc"]))}
        found += [
            _worded(each) for each in wrong if each["loc"] not in places and each["type"] != "extra_forbidden"
        ]
    told = {line.partition(":")[0] for line in found}
    shapes = _walked(schema["properties"]["spec"], given, "spec", _shape)
    found += [line for line in shapes if line.partition(":")[0] not in told]
    if found or spec is None:
        return found  # rules expect values of the right shape
    filled_in = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return list(_walked(schema, {"metadata": manifest["metadata"], "spec": filled_in}, "", _rules))


_SPECS: Mapping[str, type[BaseModel]] = {RUN_KIND: TrainingRunSpec, UNIT_KIND: LearnerUnitSpec}


@cache
def _schemas() -> dict[str, Schema]:
    found: dict[str, Schema] = json.loads(Path(__file__).with_name("schemas.json").read_text("utf-8"))
    return found


def without_nulls(value: Any) -> Any:
    """Remove null fields. The API server treats them as absent."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _of_top(manifest: Mapping[str, Any]) -> Iterator[str]:
    version = manifest.get("apiVersion")
    if version != API_VERSION:
        yield f"apiVersion: {version!r}: {API_VERSION} is wanted"
    metadata = manifest.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        yield "metadata.name: a name is wanted"
    for key in manifest:
        if key not in TOP:
            yield f"{key}: {_unknown(str(key), TOP)}"


def _worded(error: Any) -> str:
    """Return the line for one of the models' errors."""
    path = "spec" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in error["loc"])
    value = error["input"]
    shown = f"{value!r}: " if isinstance(value, (str, int, float)) else ""
    return f"{path}: {shown}{error['msg']}"


def _unknown(key: str, known: Sequence[str]) -> str:
    near = get_close_matches(key, known, n=3) or known
    return f"there is no such field; there is {', '.join(near)}"


Judge = Callable[[Schema, Any, str], Iterator[str]]


def _walked(schema: Schema, value: Any, path: str, judge: Judge) -> Iterator[str]:
    """What `judge` says about a value and everything inside it."""
    yield from judge(schema, value, path)
    if isinstance(value, dict):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, inside in value.items():
            if child := fields.get(key, others):
                yield from _walked(child, inside, f"{path}.{key}" if path else key, judge)
    elif isinstance(value, list):
        for index, inside in enumerate(value):
            yield from _walked(schema.get("items", {}), inside, f"{path}[{index}]", judge)


def _shape(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """Unknown fields, enums, patterns, quantities below zero, and lists with two items of the same key."""
    for key in value if isinstance(value, dict) and "properties" in schema else ():
        if key not in schema["properties"]:
            yield f"{path}.{key}: {_unknown(str(key), list(schema['properties']))}"
    if value not in schema.get("enum", [value]):
        yield f"{path}: {value!r}: one of {', '.join(map(str, schema['enum']))} is wanted"
    if isinstance(value, str) and not re.search(schema.get("pattern", ""), value):
        yield f"{path}: {value!r} does not match {schema['pattern']}"
    if schema.get("x-kubernetes-int-or-string") and isinstance(value, int) and not 0 <= value < 2**63:
        yield f"{path}: {value} must be 0 or more, and larger numbers need a unit such as Gi"
    for key in schema.get("x-kubernetes-list-map-keys", ()) if isinstance(value, list) else ():
        names = [item.get(key) for item in value if isinstance(item, dict)]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield f"{path}[{index}]: another item has the {key} {name!r}"


def _rules(schema: Schema, value: Any, path: str) -> Iterator[str]:
    """CEL rules, except those about changes."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"] and not evaluate(rule["rule"], self=value):
            says = rule.get("messageExpression")
            message = evaluate(says, self=value) if says else rule["message"]
            shown = f"{value!r}: " if isinstance(value, (str, int, float)) else ""
            place = f"{path}{rule.get('fieldPath', '')}".removeprefix(".")
            yield f"{place}: {shown}{message}" if place else message


def evaluate(expression: str, **variables: Any) -> Any:
    """The value of a CEL expression."""
    context = cel.Context(variables)
    for name, function in _KUBERNETES.items():
        context.add_function(name, function)
    return _program(expression).execute(context)


@cache
def _program(expression: str) -> cel.Program:
    return cel.compile(expression)


def quantity(text: str) -> float:
    number, suffix = re.fullmatch(r"([0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)", text).groups()  # type: ignore[union-attr]
    return float(number) * SCALES[suffix]


_KUBERNETES: Mapping[str, Callable[..., Any]] = {
    "split": lambda text, by: text.split(by),
    "sum": sum,
    "quantity": quantity,
    "isInteger": float.is_integer,
    "asInteger": int,
    "isGreaterThan": lambda one, other: one > other,
}
"""Functions that the API server adds to CEL and that the rules use."""

"""The table of specs that the API server refuses and accepts (`refusals.yaml`)."""

from __future__ import annotations

import copy
import itertools
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml
from crds import RESOURCES, definition
from objects import RUN
from pydantic import BaseModel

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.trainingrun import TrainingRunSpec

Object = dict[str, Any]
Path = tuple[str, ...]
"""Keys. An index of a list is written in digits."""
REMOVE = object()
UNIT: Object = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "LearnerUnit",
    "metadata": {"name": "u"},
    "spec": {
        "run": "nobody", "pool": "p", "accelerator": "tpu-v6e-slice", "topology": "2x2", "batch": 8, "stream": 0,
        "streams": 2,
    },
}  # fmt: skip
_TABLE: Mapping[str, Any] = yaml.safe_load(pathlib.Path(__file__).with_suffix(".yaml").read_text())
VALID: Mapping[str, list[Object]] = _TABLE["valid"]
SCHEMAS: Mapping[str, Object] = {
    resource.model.__name__: definition(resource)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for resource in RESOURCES
}
MODELS: Mapping[str, type[BaseModel]] = {"TrainingRun": TrainingRunSpec, "LearnerUnit": LearnerUnitSpec}


@dataclass(frozen=True, slots=True)
class Row:
    """One object, or a change to an object."""

    name: str
    before: Object | None
    body: Object
    patch: Mapping[str | Path, Any]
    field: str
    says: str

    def __str__(self) -> str:
        return self.name


def rows(section: str) -> list[Row]:
    """Rows of one section of the table."""
    found = []
    for each in _TABLE[section]:
        base = UNIT if each.get("kind") == "LearnerUnit" else RUN
        before = patched(patched(base, _TABLE["bases"].get(each.get("base"), {})), each.get("before", {}))
        patch = {path: REMOVE if value is None else value for path, value in each["patch"].items()}
        body = patched(before, patch)
        old = before if section.endswith("changes") else None
        found.append(Row(each["name"], old, body, patch, each.get("field", ""), each.get("says", "")))
    return found


def patched(base: Object, patch: Mapping[str | Path, Any]) -> Object:
    """A copy of the object with new values at dotted paths, or without these paths (REMOVE). Adds missing parents."""
    body = copy.deepcopy(base)
    for path, value in patch.items():
        keys = path.split(".") if isinstance(path, str) else path
        place: Any = body
        for key, following in itertools.pairwise(keys):
            if isinstance(place, dict):
                place = place.setdefault(key, [] if following.isdigit() else {})
            else:
                place[:] = place or [{}]
                place = place[int(key)]
        if value is REMOVE:
            place.pop(keys[-1], None) if isinstance(place, dict) else place.clear()
        elif isinstance(place, dict):
            place[keys[-1]] = copy.deepcopy(value)
        else:
            place[int(keys[-1]) :] = [copy.deepcopy(value), *place[int(keys[-1]) + 1 :]]
    return body

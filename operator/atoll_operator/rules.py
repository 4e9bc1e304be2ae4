"""What the API server itself refuses: CEL rules, enums and patterns laid over the schemas of the models.

The lists come from `plan/tpu.py` and `plan/names.py`, so that the API and the plans cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atoll_operator.plan.names import NAMES_LIMIT
from atoll_operator.plan.tpu import ACCELERATORS, GENERATIONS, Generation
from atoll_operator.schema import Schema
from atoll_runtime.contract import PRESETS

Rule = dict[str, Any]
GCS_URI = r"^gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^\s]*)?$"
IMMUTABLE = ("model", "data", "inner", "outer", "quorum", "target", "checkpoint", "pools")
IMMUTABLE_OPTIONAL = ("image", "serviceAccountName")
IMMUTABLE_SYNCER = ("tape", "resources", "nodeSelector", "tolerations", "storageClassName", "storage")


def rule(expression: str, message: str, field: str = "") -> Rule:
    """A CEL rule; `field` is the path, relative to the rule's place, that the API server's message names."""
    result: Rule = {"rule": expression, "message": message}
    if field:
        result["fieldPath"] = f".{field}"
    return result


def at(schema: Schema, path: str) -> Schema:
    """The part of a schema at a path such as `spec.pools[].name`."""
    for key in path.split("."):
        schema = schema["properties"][key.removesuffix("[]")]
        if key.endswith("[]"):
            schema = schema["items"]
    return schema


def _quoted(names: tuple[str, ...]) -> str:
    return "[" + ", ".join(f"'{name}'" for name in names) + "]"


def _shape_rules(generation: Generation) -> Iterator[Rule]:
    accelerator = generation.accelerator
    other = f"self.accelerator != '{accelerator}' || "
    topologies = generation.topologies()
    shown = topologies if len(topologies) <= 10 else (*topologies[:8], "…", topologies[-1])
    yield rule(
        f"{other}self.topology in {_quoted(topologies)}",
        f"topology does not exist for {accelerator}; one of {', '.join(shown)}",
        "topology",
    )
    machines = tuple(machine.name for machine in generation.machines)
    yield rule(
        f"{other}!has(self.machineType) || self.machineType in {_quoted(machines)}",
        f"machineType is not one of {accelerator}; one of {', '.join(machines)}",
        "machineType",
    )
    for machine in generation.machines:
        if len(generation.machines) > 1:
            yield rule(
                f"!has(self.machineType) || self.machineType != '{machine.name}' "
                f"|| self.topology in {_quoted(machine.topologies)}",
                f"machineType {machine.name} makes only slices of topology {', '.join(machine.topologies)}",
                "machineType",
            )
    for topology in generation.ambiguous():
        names = " or ".join(item.name for item in generation.machines if topology in item.topologies)
        yield rule(
            f"{other}self.topology != '{topology}' || has(self.machineType)",
            f"machineType is needed: {topology} of {accelerator} exists as {names}",
            "topology",
        )


def _pool_rules() -> Iterator[Rule]:
    for generation in GENERATIONS:
        yield from _shape_rules(generation)
    yield rule(
        "self.slicesPerUnit == 1", "slicesPerUnit must be 1: single-slice units only for now", "slicesPerUnit"
    )
    yield rule(
        "(self.capacity == 'Reservation') == has(self.reservationName)",
        "reservationName is needed with capacity Reservation, and only then",
        "capacity",
    )


def constrain_run(schema: Schema) -> None:
    """Lays the rules of a TrainingRun over its schema."""
    at(schema, "spec.data.uri")["pattern"] = GCS_URI
    at(schema, "spec.checkpoint.uri")["pattern"] = GCS_URI
    at(schema, "spec.model.preset")["enum"] = list(PRESETS)
    at(schema, "spec.pools[].accelerator")["enum"] = list(ACCELERATORS)
    _list_map(at(schema, "spec.pools"), "name")
    _list_map(at(schema, "status.conditions"), "type")
    model = at(schema, "spec.model")
    model["x-kubernetes-validations"] = [
        rule("has(self.preset) != has(self.dimensions)", "exactly one of preset and dimensions must be given")
    ]
    at(schema, "spec.model.dimensions")["x-kubernetes-validations"] = [
        rule("self.width % self.heads == 0", "width must be a multiple of heads", "width"),
        rule("self.heads % self.kvHeads == 0", "heads must be a multiple of kvHeads", "heads"),
    ]
    at(schema, "spec.outer")["x-kubernetes-validations"] = [
        rule("self.overlap <= self.interval", "overlap must be at most interval: τ ≤ H", "overlap"),
        rule("self.fragments <= self.interval", "fragments must be at most interval: P ≤ H", "fragments"),
    ]
    at(schema, "spec.target")["x-kubernetes-validations"] = [
        rule("has(self.globalSteps) || has(self.tokens)", "one of globalSteps and tokens must be given")
    ]
    at(schema, "spec.pools[]")["x-kubernetes-validations"] = list(_pool_rules())
    at(schema, "spec.syncer")["x-kubernetes-validations"] = [
        _immutable_optional(name, "spec.syncer") for name in IMMUTABLE_SYNCER
    ]
    spec = at(schema, "spec")
    spec["x-kubernetes-validations"] = [
        rule(
            "self.quorum.min <= self.pools.map(p, p.units).sum()",
            "quorum.min is more than the units of all pools together: no round could ever be merged",
            "quorum.min",
        ),
        rule(
            "self.syncer.shards == oldSelf.syncer.shards || (self.suspend && oldSelf.suspend)",
            "syncer.shards can be changed only while the run is suspended: set spec.suspend to true first",
            "syncer.shards",
        ),
        *(_immutable_optional(name) for name in IMMUTABLE_OPTIONAL),
    ]
    for name in IMMUTABLE:
        part = at(schema, f"spec.{name}")
        part.setdefault("x-kubernetes-validations", []).append(
            rule(
                "self == oldSelf",
                f"spec.{name} cannot be changed: the pods read it once; make a new TrainingRun",
            )
        )
    schema["x-kubernetes-validations"] = [
        rule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name must be a DNS label: lower-case letters, digits and hyphens, first a letter",
        ),
        {
            "rule": f"self.spec.pools.all(p, self.metadata.name.size() + p.name.size() <= {NAMES_LIMIT})",
            "message": f"metadata.name and the name of each pool must have at most {NAMES_LIMIT} characters together: "
            "host names <run>-<pool>-<index>-<incarnation>-<host> end at 63",
        },
    ]


def constrain_unit(schema: Schema) -> None:
    """Lays the rules of a LearnerUnit over its schema."""
    _list_map(at(schema, "status.conditions"), "type")
    at(schema, "spec")["x-kubernetes-validations"] = [
        rule("self == oldSelf", "spec cannot be changed: delete the unit and its run makes it again")
    ]


def _immutable_optional(name: str, parent: str = "spec") -> Rule:
    return rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        f"{parent}.{name} cannot be changed: the pods read it once; make a new TrainingRun",
    )


def _list_map(schema: Schema, key: str) -> None:
    schema["x-kubernetes-list-type"] = "map"
    schema["x-kubernetes-list-map-keys"] = [key]

"""What the API server itself refuses: CEL rules, enums and patterns laid over the schemas of the models.

The lists come from `plan/tpu.py` and `plan/names.py`, so that the API and the plans cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atoll_operator.plan.names import NAMES_LIMIT
from atoll_operator.plan.tpu import ACCELERATORS, GENERATIONS, Generation
from atoll_operator.schema import Schema
from atoll_runtime.contract import PRESETS

Rule = dict[str, Any]
GCS_URI = r"^gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^\s]*)?$"
FIXED: Mapping[str, str] = {
    "model": "every unit and every checkpoint has its shape",
    "data": "the units' positions in it would mean something else",
    "inner": "all units train by the same rule, and those that train now have read it",
    "outer": "journals, checkpoints and units are laid out by it",
}
"""Sections of a run's spec that stay as they are, and why."""
FIXED_POOL: Mapping[str, str] = {
    "accelerator": "a pool's units are slices of one kind",
    "topology": "a pool's units are slices of one kind",
    "machineType": "a pool's units are slices of one kind",
    "slicesPerUnit": "a pool's units are slices of one kind",
    "capacity": "a pool's units are bought in one way",
    "reservationName": "a pool's units are bought in one way",
}
FIXED_SYNCER: Mapping[str, str] = {
    "tape": "a tape is of one depth from its beginning",
    "storage": "Kubernetes does not change the volumes of a StatefulSet",
    "storageClassName": "Kubernetes does not change the volumes of a StatefulSet",
}
FIXED_UNIT = ("run", "pool", "accelerator", "topology", "machineType", "slices", "stream", "streams")
NEW_RUN = "make a new TrainingRun"
NEW_POOL = "add a pool of another name and remove this one"


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
    for name, reason in FIXED_POOL.items():
        yield _fixed(name, f"spec.pools cannot be changed in {name}: {reason}; {NEW_POOL}")


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
        _fixed(name, f"spec.syncer.{name} cannot be changed: {reason}; {NEW_RUN}")
        for name, reason in FIXED_SYNCER.items()
    ]
    at(schema, "spec.checkpoint")["x-kubernetes-validations"] = [
        rule(
            "self.uri == oldSelf.uri",
            f"spec.checkpoint cannot be changed in uri: the run's checkpoints lie there; {NEW_RUN}",
            "uri",
        )
    ]
    spec = at(schema, "spec")
    spec["x-kubernetes-validations"] = [
        rule(
            "self.pools.exists(p, p.units > 0)",
            "spec.pools[0].units must be at least 1 where no other pool has units; to give all chips back scale the "
            "run to 0 (spec.units) or suspend it",
            "pools",
        ),
        rule(
            "!self.pools.exists(p, p.units > 0) || self.quorum.min <= self.pools.map(p, p.units).sum()",
            "quorum.min is more than the units of all pools together: no round could ever be merged",
            "quorum.min",
        ),
        rule(
            "self.target == oldSelf.target || self.inner.schedule == 'Constant'",
            "spec.target cannot be changed with inner.schedule Cosine: the learning rate of every unit follows it; "
            f"{NEW_RUN}",
            "target",
        ),
        rule(
            "self.syncer.shards == oldSelf.syncer.shards || (self.suspend && oldSelf.suspend)",
            "syncer.shards can be changed only while the run is suspended: set spec.suspend to true first",
            "syncer.shards",
        ),
        _fixed(
            "serviceAccountName",
            f"spec.serviceAccountName cannot be changed: the bucket knows the run by it; {NEW_RUN}",
        ),
    ]
    for name, reason in FIXED.items():
        part = at(schema, f"spec.{name}")
        part.setdefault("x-kubernetes-validations", []).append(
            rule("self == oldSelf", f"spec.{name} cannot be changed: {reason}; {NEW_RUN}")
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
        _fixed(name, f"spec.{name} cannot be changed: delete the unit and its run makes it again")
        for name in FIXED_UNIT
    ]


def _fixed(name: str, message: str) -> Rule:
    """A field that may be absent, and then stays so."""
    return rule(
        f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || self.{name} == oldSelf.{name})",
        message,
        name,
    )


def _list_map(schema: Schema, key: str) -> None:
    schema["x-kubernetes-list-type"] = "map"
    schema["x-kubernetes-list-map-keys"] = [key]

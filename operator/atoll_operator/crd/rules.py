"""What the API server itself refuses: CEL rules, enums and patterns laid over the schemas of the models.

Lists and limits come from `plan/`, so that the API and the plans cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from atoll_operator.api.pool import MAX_UNITS
from atoll_operator.crd.cel import fixed, kept, rule, valued, whole
from atoll_operator.crd.modelrules import constrain_inner, constrain_model, model_rules
from atoll_operator.crd.podrules import (
    IMAGE,
    SUBDOMAIN,
    constrain_placement,
    constrain_quantity,
    constrain_template,
)
from atoll_operator.crd.poolrules import kept_rules, mesh_rule, pool_rules, slice_rules
from atoll_operator.crd.schema import Schema
from atoll_operator.crd.volumerules import constrain_volumes
from atoll_operator.plan.pods.names import EVALUATED_LIMIT, NAMES_LIMIT, UNIT_NAME_LIMIT
from atoll_operator.plan.pods.topology import ACCELERATORS, TOPOLOGY
from atoll_operator.plan.run.suspension import NOT_SAVED

GCS_URI = r"^gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](/[^ \t-\r]*)?$"
DATA_URI = rf"{GCS_URI}|^file://(/([^/. \t-\r]|[.][^/. \t-\r])[^/ \t-\r]*)+/?$"
"""A bucket, or a folder of a volume: no part of its path begins with `..`."""
LABEL = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""The name of a run or a unit: a DNS label that is a Service's."""
FIXED: Mapping[str, str] = {
    "model": "every unit and every checkpoint has its shape",
    "data": "the units' positions in it would mean something else",
    "inner": "all units train by the same rule, and those that train now have read it",
    "outer": "journals, checkpoints and units are laid out by it",
}
"""Sections of a run's spec that stay as they are, and why."""
FIXED_SYNCER: Mapping[str, str] = {
    "tape": "a tape is of one depth from its beginning",
    "storage": "Kubernetes does not change the volumes of a StatefulSet",
    "storageClassName": "Kubernetes does not change the volumes of a StatefulSet",
}
FIXED_UNIT = ("run", "pool", "accelerator", "topology", "slices", "stream", "streams")
"""Of a unit's spec, besides `machineType`, which may be absent."""
WHOLE_OF_RUN = (
    "units", "pools[].units", "quorum.min", "syncer.shards", "outer.fragments",
    "inner.mesh.tensor", "inner.mesh.expert",
    *(f"model.dimensions.{name}" for name in ("layers", "heads", "kvHeads", "hidden", "experts", "expertHidden")),
)  # fmt: skip
WHOLE_OF_UNIT = ("slices", "stream", "streams")
"""Numbers that rules of a whole spec read."""
NEW_RUN = "make a new TrainingRun"
NEW_UNIT = "cannot be changed: delete the unit and its run makes it again"


def at(schema: Schema, path: str) -> Schema:
    """The part of a schema at a path such as `spec.pools[].name`."""
    for key in path.split("."):
        schema = schema["properties"][key.removesuffix("[]")]
        if key.endswith("[]"):
            schema = schema["items"]
    return schema


def constrain_run(schema: Schema) -> None:
    """Lays the rules of a TrainingRun over its schema."""
    at(schema, "spec.data.uri")["pattern"] = DATA_URI
    at(schema, "spec.checkpoint.uri")["pattern"] = GCS_URI
    at(schema, "spec.pools[].accelerator")["enum"] = list(ACCELERATORS)
    at(schema, "spec.pools[].topology")["pattern"] = TOPOLOGY
    at(schema, "spec.image")["pattern"] = IMAGE
    at(schema, "spec.serviceAccountName")["pattern"] = SUBDOMAIN
    at(schema, "spec.syncer.storageClassName")["pattern"] = SUBDOMAIN
    constrain_quantity(at(schema, "spec.syncer.storage"))
    at(schema, "spec.evaluation.image")["pattern"] = IMAGE
    for place in ("spec.pools[]", "spec.syncer", "spec.evaluation"):
        constrain_placement(at(schema, place))
    for constrain in (constrain_template, constrain_volumes):
        constrain(at(schema, "spec.podTemplate"))
    _list_map(at(schema, "spec.pools"), "name")
    _list_map(at(schema, "status.conditions"), "type")
    constrain_model(at(schema, "spec.model"))
    constrain_inner(at(schema, "spec.inner"))
    at(schema, "spec.outer")["x-kubernetes-validations"] = [
        rule("self.overlap <= self.interval", "overlap must be at most interval: τ ≤ H", "overlap"),
        rule("self.fragments <= self.interval", "fragments must be at most interval: P ≤ H", "fragments"),
    ]
    at(schema, "spec.target")["x-kubernetes-validations"] = [
        rule("has(self.globalSteps) || has(self.tokens)", "one of globalSteps and tokens must be given")
    ]
    at(schema, "spec.pools[]")["x-kubernetes-validations"] = list(pool_rules())
    for name, always in kept_rules():
        at(schema, f"spec.pools[].{name}")["x-kubernetes-validations"] = [always]
    at(schema, "spec.syncer")["x-kubernetes-validations"] = [
        rule("string(self.storage).matches('^[0.]*[1-9]')", "storage must be above 0", "storage"),
        *(
            fixed(name, f"spec.syncer.{name} cannot be changed: {reason}; {NEW_RUN}")
            for name, reason in FIXED_SYNCER.items()
        ),
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
            f"!has(self.units) || self.units <= self.pools.size() * {MAX_UNITS}",
            f"units is more than the pools can have: {MAX_UNITS} each",
            "units",
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
        mesh_rule(),
        *model_rules(),
        _PRIORITY_IN_A_QUEUE,
        valued(
            "!self.data.uri.startsWith('file:') || self.podTemplate.volumeMounts.exists(mount, "
            "(self.data.uri + '/').startsWith('file://' + mount.mountPath + '/'))",
            "data.uri",
            "must lie below a mountPath of podTemplate.volumeMounts, for every pod reads it, or in a bucket (gs://)",
        ),
        fixed(
            "serviceAccountName",
            f"spec.serviceAccountName cannot be changed: the bucket knows the run by it; {NEW_RUN}",
        ),
    ]
    _whole(schema, WHOLE_OF_RUN)
    for name, reason in FIXED.items():
        part = at(schema, f"spec.{name}")
        part.setdefault("x-kubernetes-validations", []).append(
            rule("self == oldSelf", f"spec.{name} cannot be changed: {reason}; {NEW_RUN}")
        )
    schema["x-kubernetes-validations"] = [
        _A_LABEL,
        rule(
            f"!has(self.spec.evaluation) || self.metadata.name.size() <= {EVALUATED_LIMIT}",
            f"metadata.name must have at most {EVALUATED_LIMIT} characters in a run with spec.evaluation: a label of "
            "its pod, <run>-evaluator-<10 characters>, ends at 63",
        ),
        rule(
            "self.spec.syncer.shards == oldSelf.spec.syncer.shards || (has(self.status) && "
            "has(self.status.conditions) && self.status.conditions.exists(c, c.type == 'Suspended' && "
            f"c.status == 'True' && c.reason != '{NOT_SAVED}'))",
            "spec.syncer.shards can be changed once the condition Suspended is True with a checkpoint of the last step "
            f"(any reason but {NOT_SAVED}): the new shards begin from that, and merges after it would be lost",
        ),
        {
            "rule": f"self.spec.pools.all(p, self.metadata.name.size() + p.name.size() <= {NAMES_LIMIT})",
            "message": f"metadata.name and the name of each pool must have at most {NAMES_LIMIT} characters together: "
            "host names <run>-<pool>-<index>-<gang>-<host> end at 63",
        },
    ]


def constrain_unit(schema: Schema) -> None:
    """Lays the rules of a LearnerUnit over its schema."""
    at(schema, "spec.accelerator")["enum"] = list(ACCELERATORS)
    at(schema, "spec.topology")["pattern"] = TOPOLOGY
    at(schema, "spec.run")["pattern"] = LABEL
    at(schema, "spec.image")["pattern"] = IMAGE
    constrain_placement(at(schema, "spec"))
    for constrain in (constrain_template, constrain_volumes):
        constrain(at(schema, "spec.podTemplate"))
    _list_map(at(schema, "status.conditions"), "type")
    at(schema, "spec")["x-kubernetes-validations"] = [
        *slice_rules("slices"),
        rule("self.stream < self.streams", "stream must be below streams: streams count from 0", "stream"),
        _PRIORITY_IN_A_QUEUE,
        fixed("machineType", f"spec.machineType {NEW_UNIT}"),
    ]
    for name in FIXED_UNIT:
        at(schema, f"spec.{name}")["x-kubernetes-validations"] = [kept(f"spec.{name} {NEW_UNIT}")]
    _whole(schema, WHOLE_OF_UNIT)
    schema["x-kubernetes-validations"] = [
        _A_LABEL,
        rule(
            f"self.metadata.name.size() <= {UNIT_NAME_LIMIT}",
            f"metadata.name must have at most {UNIT_NAME_LIMIT} characters: host names <unit>-<gang>-<host> end at 63",
        ),
        rule(
            "!self.metadata.name.matches('-(syncer|evaluator)$')",
            "metadata.name must not end with -syncer or -evaluator: Services and certificates of a run's are called so",
        ),
    ]


def _whole(schema: Schema, names: Iterable[str]) -> None:
    for name in names:
        at(schema, f"spec.{name}").setdefault("x-kubernetes-validations", []).append(whole())


_A_LABEL = rule(
    f"self.metadata.name.matches('{LABEL}')",
    "metadata.name must be a DNS label: lower-case letters, digits and hyphens, first a letter",
)
_PRIORITY_IN_A_QUEUE = rule(
    "!has(self.queuePriorityClass) || has(self.queueName)",
    "spec.queuePriorityClass is a priority in a queue of Kueue: give spec.queueName too, or neither",
    "queuePriorityClass",
)


def _list_map(schema: Schema, key: str) -> None:
    schema["x-kubernetes-list-type"] = "map"
    schema["x-kubernetes-list-map-keys"] = [key]

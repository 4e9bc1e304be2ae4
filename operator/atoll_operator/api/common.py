"""Parts that both resources share: bounded maps, tolerations, resources, rules of slices, the token ledger."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from atoll_runtime.contract import MOST_REASONS, MOST_WAITS, LedgerReport, Report, Section, WaitReport
from atoll_runtime.contract.rules import Rule, checked, rule

Name = Annotated[str, Field(min_length=1, max_length=253)]
"""Name of an object of the cluster."""
_SUBDOMAIN = r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*$"
Subdomain = Annotated[str, Field(min_length=1, max_length=253, pattern=_SUBDOMAIN)]
ServiceName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$")]
"""DNS label of a Service, and of what Compute Engine names."""
QueueName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
"""Name of a LocalQueue or a WorkloadPriorityClass of Kueue: it is the value of a label."""
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[!-~]+$")]
ACCELERATORS = ("tpu-v5-lite-podslice", "tpu-v5-lite-device", "tpu-v5p-slice", "tpu-v6e-slice", "tpu7x")
Accelerator = Annotated[str, Field(max_length=63, json_schema_extra={"enum": list(ACCELERATORS)})]
Topology = Annotated[str, Field(max_length=16, pattern=r"^[1-9][0-9]{0,2}(x[1-9][0-9]{0,2}){1,2}$")]
"""Chips along each side of a slice."""
Label = Annotated[str, Field(max_length=63)]
NodeSelector = Annotated[dict[str, Label], Field(max_length=16)]
INT_OR_STRING: dict[str, Any] = {
    "x-kubernetes-int-or-string": True,
    "maxLength": 32,
    "minimum": 0,
    "pattern": r"^([0-9]+(\.[0-9]*)?|\.[0-9]+)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|[eE][+-]?[0-9]{1,2})?$",
}
Quantity = Annotated[int | str, WithJsonSchema(INT_OR_STRING)]
Quantities = Annotated[dict[str, Quantity], Field(max_length=8)]


def keyed_by(field: str) -> Any:
    """For `Annotated`: a list that server-side apply merges item by item."""
    return Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]})


class Toleration(Section):
    """A toleration as in a pod."""

    key: Annotated[str, Field(max_length=253)] | None = None
    """Key of the taint. Every taint if not set, with operator Exists."""
    operator: Literal["Exists", "Equal"] = "Equal"
    """Equal: the taint has this value. Exists: it has any value."""
    value: Label | None = None
    """Value of the taint."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """Effect of the taint. Every effect if not set."""
    toleration_seconds: Annotated[int, Field(ge=0)] | None = None
    """How long a NoExecute taint is tolerated. For ever if not set."""


Tolerations = Annotated[tuple[Toleration, ...], Field(max_length=16)]


class Resources(Section):
    """Requests and limits of the container. The operator sets `google.com/tpu`."""

    model_config = checked(
        rule(
            "!(has(self.requests) && 'google.com/tpu' in self.requests) && "
            "!(has(self.limits) && 'google.com/tpu' in self.limits)",
            "must not have google.com/tpu, which the operator sets",
        )
    )

    requests: Quantities = Field(default_factory=dict)
    """Amounts that the scheduler reserves, such as cpu and memory."""
    limits: Quantities = Field(default_factory=dict)
    """Amounts that the container may use."""


def slice_rules(slices: str) -> tuple[Rule, ...]:
    """Rules of TPU slices, for an object with accelerator, topology and machineType, whose field `slices` says how many
    slices make a unit. Their tables are beside the generator of the CRDs, `.ci/schema.py`. There is only one rule for
    each kind of mistake, because the rules of a spec run at each write of a status too, and for each field that a rule
    reads the API server copies the schemas of all fields beside it."""
    return (
        rule(
            "(self.accelerator + ' ' + self.topology) in TOPOLOGIES || "
            "(self.accelerator in CUBE_CHIPS && self.topology.matches('^[0-9]+x[0-9]+x[0-9]+$') && "
            "[self.topology.split('x').map(side, int(side))].all(t, t.all(side, side % 4 == 0) && t[0] <= t[1] && "
            "t[1] <= t[2] && t[2] <= 256 && t[0] * t[1] * t[2] <= CUBE_CHIPS[self.accelerator]))",
            "must be a topology of the accelerator",
            "topology",
            says="self.topology + ' does not exist for ' + self.accelerator + ': it has ' + OFFERS[self.accelerator]",
        ),
        rule(
            "[self.accelerator + ' ' + self.topology].all(slice, !has(self.machineType) ? !(slice in AMBIGUOUS) : "
            "slice in TOPOLOGIES ? (slice + ' ' + self.machineType) in MACHINES : "
            "(self.accelerator + ' ' + self.machineType) in CUBE_MACHINES)",
            "must be a machine type of the topology, and be given where there are several",
            "machineType",
            says="'must be a machine type of topology ' + self.topology + ', and be given where there are several; ' + "
            "self.accelerator + ' has ' + OFFERS[self.accelerator]",
        ),
        rule(
            "!has(self.FIELD) || self.FIELD == 1 || !((self.accelerator + ' ' + self.topology + "
            "(has(self.machineType) ? ' ' + self.machineType : '')) in ONE_HOST)",
            "must be 1 for slices of one host: several slices make one unit only if each has several hosts",
            slices,
        ),
        rule(
            "!has(self.FIELD) || self.FIELD == 1 || [(self.topology + 'x1').split('x').map(side, int(side))]"
            ".all(t, t[0] * t[1] * t[2] * self.FIELD <= 16384)",
            "must be smaller: a unit has at most 4096 hosts of 4 chips in all its slices",
            slices,
        ),
    )


class Cost(Report):
    """What failures cost: from each failure to the next merge, or until the unit was given up or removed.

    A heal that is under way does not count yet. Another failure before the merge belongs to the same heal.
    """

    failures: int = 0
    """Number of heals."""
    seconds: float = 0.0
    """Seconds of these heals."""
    chip_seconds: float = 0.0
    """Seconds × chips of the unit."""
    steps: int = 0
    """Inner steps that the unit would have made in that time at its pace."""


class CostStatus(Cost):
    """The total, and its parts by reason."""

    by_reason: Annotated[dict[str, Cost], Field(max_length=MOST_REASONS)] = Field(default_factory=dict)
    """Costs by the reason of the failure that began the heal. `Other` sums all reasons after the first fifteen."""


class LedgerStatus(LedgerReport):
    """What became of every trained token, over all incarnations.

    It counts token-fragments: a token counts once per fragment, so divide by `fragments` for tokens.
    `trained` = `merged` + `inFlight` + all of `discarded`.
    """

    fragments: int = 0
    """Fragments of which shard 0 owns a part; a token is merged into each of them."""
    waits: Annotated[tuple[WaitReport, ...], Field(max_length=MOST_WAITS)] = ()
    """For a unit: tokens in flight that wait for its link, by fragment; the first 64."""


RUN_CONDITIONS = ("Ready", "Progressing", "Degraded", "Suspended", "Complete", "Failed", "Stalled")
"""`Stalled` is for tools that follow kstatus (Helm, Argo CD, Flux): the run failed, or cannot be as its spec says."""
EVALUATED = "Evaluated"
"""A further condition, of a run that has `spec.evaluation`."""
Time = Annotated[str, Field(max_length=64, json_schema_extra={"format": "date-time"})]
Reason = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$")]
Message = Annotated[str, Field(max_length=4096)]


class Condition(Report):
    """One aspect of the state, with its reason."""

    type: Annotated[str, Field(max_length=64)]
    """Name of the condition, such as `Ready`."""
    status: Literal["True", "False", "Unknown"]
    """Unknown: it cannot be determined now."""
    reason: Reason
    """Reason in one word, for programs."""
    message: Message = ""
    """Explanation for people. May be empty."""
    last_transition_time: Time
    """When `status` changed last."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """`metadata.generation` of the spec that this condition is about."""


Conditions = Annotated[tuple[Condition, ...], Field(max_length=16), keyed_by("type")]

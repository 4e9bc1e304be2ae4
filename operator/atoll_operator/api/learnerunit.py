"""`LearnerUnit`: one island of a run, created by its run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api import common
from atoll_operator.api.podtemplate import PodTemplate
from atoll_runtime.contract import MOST_REASONS, LinkReport, Report, Section
from atoll_runtime.contract.rules import WHOLE, cel, checked, immutable, immutable_field, rule

MAX_RESTARTS = 1024
"""Restarts in one status."""
MAX_SLICES = 64
"""Slices of one unit."""
MAX_STREAM = 8191
"""Highest stream. A run has twice as many as units at once, because deleted units keep theirs for their return."""
NEW_UNIT = "delete the unit and its run creates it again"
FIXED = cel(immutable(NEW_UNIT))
FIXED_NUMBER = cel(immutable(NEW_UNIT), WHOLE)
QUEUE_OF_PRIORITY = rule(
    "!has(self.queuePriorityClass) || has(self.queueName)",
    "is a priority in a queue of Kueue: give queueName too, or neither",
    "queuePriorityClass",
)
NAMED = rule(
    "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "metadata.name must be a DNS label: lower-case letters, digits and hyphens, beginning with a letter",
)
"""Rule for the name of a run or a unit, after which Services and hosts are named."""


class LearnerUnitSpec(Section):
    """One island of a run: a TPU slice, or several that form one mesh."""

    model_config = checked(
        *common.slice_rules("slices"),
        rule("self.stream < self.streams", "must be below streams: streams count from 0", "stream"),
        QUEUE_OF_PRIORITY,
        immutable_field("machineType", NEW_UNIT),
    )

    run: Annotated[common.ServiceName, FIXED]
    """Name of its TrainingRun, in the same namespace."""
    pool: Annotated[str, Field(min_length=1, max_length=63), FIXED]
    """Name of its pool. Free for a unit made by hand."""
    accelerator: Annotated[common.Accelerator, FIXED]
    """Accelerator of the slice: value of the node label cloud.google.com/gke-tpu-accelerator."""
    topology: Annotated[common.Topology, FIXED]
    """Topology of the slice: value of the node label cloud.google.com/gke-tpu-topology."""
    machine_type: common.Label | None = None
    """Machine type. Required only where the topology exists on several, such as 2x4 of v5e and v6e."""
    slices: Annotated[int, Field(ge=1, le=MAX_SLICES), FIXED_NUMBER] = 1
    """Slices of the unit, which form one mesh. More than one requires slices of several hosts."""
    batch: Annotated[int, Field(ge=1, le=1_048_576)]
    """Sequences of the unit in one inner step."""
    stream: Annotated[int, Field(ge=0, le=MAX_STREAM), FIXED_NUMBER]
    """Data stream of the unit, one of `streams` disjoint ones."""
    streams: Annotated[int, Field(ge=1, le=2 * (MAX_STREAM + 1)), FIXED_NUMBER]
    """Disjoint streams that the data are divided into."""
    image: common.Image | None = None
    """Image of the unit's pods. Defaults to the run's image. A change of it, of `batch`, `resources`, `nodeSelector`,
    `tolerations`, `podTemplate` or the queue starts the next incarnation of the unit."""
    node_selector: Annotated[dict[str, common.Label], Field(max_length=17)] = Field(default_factory=dict)
    """Labels of the nodes besides those of accelerator and topology: those of its pool and of the pool's capacity."""
    tolerations: common.Tolerations = ()
    """Tolerations besides those for TPU nodes, which the operator adds."""
    resources: common.Resources = common.Resources()
    pod_template: PodTemplate | None = None
    """Additions to the unit's pods. Defaults to the run's `podTemplate`."""
    queue_name: common.QueueName | None = None
    """LocalQueue of Kueue in which its pods wait for admission, all together."""
    queue_priority_class: common.QueueName | None = None
    """WorkloadPriorityClass of Kueue. Requires `queueName`."""


class Restart(Report):
    """One restart of the unit."""

    time: common.Time
    """When it was decided."""
    reason: Annotated[str, Field(max_length=256)]
    """Reason of the failure (docs/learnerunit.md)."""
    in_place: bool = False
    """The unit kept its hosts: containers restarted, and pods were replaced. False: it was given new hosts."""
    replaced: int = 0
    """Pods that were replaced on their hosts; the others stayed and their containers restarted."""
    avoid: Annotated[tuple[Annotated[str, Field(max_length=253)], ...], Field(max_length=MAX_SLICES)] = ()
    """Where it was `Suspect` and does not come back: its node, or the node pools of slices of several hosts."""


class Failure(Report):
    """The failure for which the unit was last restarted, or is about to be."""

    reason: Annotated[str, Field(max_length=256)]
    """Reason in one word, such as `NodeLost` (docs/learnerunit.md)."""
    message: common.Message = ""
    """Message of Kubernetes or of the container."""
    pod: Annotated[str, Field(max_length=253)] = ""
    """Pod that failed; empty if it was not a single one."""
    node: Annotated[str, Field(max_length=253)] = ""
    """Node of that pod; empty if it had none."""
    exit_code: int | None = None
    """Exit code of its container; absent if no container ended."""
    time: common.Time
    """When its container ended, or else when the operator saw the failure."""


class HealStages(Report):
    """Seconds of each stage of a heal; absent if unknown."""

    schedule: float | None = None
    """From the failure until every pod had a node; 0 if no pod was replaced."""
    pull: float | None = None
    """Until every container ran: image, volumes, kubelet."""
    start: float | None = None
    """Until the hosts formed one mesh."""
    restore: float | None = None
    """Until the end of the first step, without `compile`: state from a checkpoint or a peer, syncer, data."""
    compile: float | None = None
    """Compiling programs, or loading them from the cache of the run."""
    catch_up: float | None = None
    """From the first step to the first merge."""


class Heal(Report):
    """One heal of the unit, from a failure to the first merge after it."""

    incarnation: int
    """Incarnation that was merged."""
    reason: Annotated[str, Field(max_length=256)]
    """Reason of the failure that started it."""
    started_at: common.Time
    """When the container ended, or else when the operator saw the failure."""
    seconds: float
    """Seconds from the failure to the merge."""
    chip_seconds: float = 0.0
    """Seconds × chips of the unit."""
    steps: int = 0
    """Inner steps that the unit would have made in that time at its pace."""
    stages: HealStages = HealStages()


UnitPhase = Literal[
    "Pending", "Scheduling", "Starting", "Joining", "Learning", "Healing", "Suspended", "Finished", "Failed"
]


class LearnerUnitStatus(Report):
    """What the operator observed and did, as last written."""

    phase: UnitPhase = "Pending"
    """Summary of the conditions in one word."""
    message: common.Message = ""
    """What the unit waits for, or why it failed; for people."""
    incarnation: int = 0
    """Raised before each restart, on the unit's hosts or on new ones. The syncer refuses every older process."""
    placement: int = 0
    """The incarnation in which the unit was last given hosts. A restart on the same hosts keeps it."""
    merged_incarnation: int = 0
    """The last incarnation that had a contribution merged."""
    restarts: Annotated[tuple[Restart, ...], Field(max_length=MAX_RESTARTS)] = ()
    """Restarts within `spec.recovery.windowSeconds` of the run."""
    restart_count: int = 0
    """All restarts so far, including those outside the budget's window."""
    last_failure: Failure | None = None
    last_heal_seconds: float | None = None
    """Seconds of the last heal, from the failure to the first merge after it; absent before the first heal."""
    last_heal: Heal | None = None
    heal_start_time: common.Time | None = None
    """When the heal under way started; absent if there is none."""
    heal_reason: Annotated[str, Field(max_length=256)] = ""
    """Reason of the failure that started the heal under way; empty if there is none."""
    chips: int = 0
    """TPU chips of all its slices."""
    step: int = 0
    """Inner steps of the unit."""
    tokens: int = 0
    """Tokens trained by all incarnations; `ledger` says what became of them."""
    loss: float | None = None
    """Training loss of its last inner steps, in nats per token; absent before the first report."""
    tokens_per_second: float = 0.0
    """Training rate, as last reported."""
    step_seconds: float = 0.0
    """Seconds of an inner step, as last known; 0 before the first."""
    link: LinkReport | None = None
    """The link between its host 0 and the syncer, as transfers of the last five minutes show it; absent before the
    first."""
    staleness: int = 0
    """Global steps since its last merge."""
    contributions: int = 0
    """Merges of this incarnation."""
    refusals: Annotated[dict[str, int], Field(max_length=MOST_REASONS)] = Field(default_factory=dict)
    """Contributions that shard 0 refused (see the metrics of the others), by reason: `tokens`, `steps`, `norm`."""
    share_percent: float = 0.0
    """The unit's percentage of all merged tokens."""
    lost: common.CostStatus | None = None
    """What failures of this unit cost; absent before the first."""
    seeded_step: int | None = None
    """Global step of the checkpoint that this incarnation started from; absent until it has one."""
    ledger: common.LedgerStatus | None = None
    """What became of this unit's tokens, in token-fragments: divide by `fragments` for tokens."""
    conditions: common.Conditions = ()
    """Conditions (docs/learnerunit.md)."""
    observed_generation: int = 0
    """`metadata.generation` of the spec that this status is based on."""


class LearnerUnit(Report):
    """One island of a TrainingRun: TPU slices that train at their own pace and heal independently of others."""

    model_config = checked(
        NAMED,
        rule(
            "self.metadata.name.size() <= UNIT_NAME_LIMIT",
            "metadata.name must have at most UNIT_NAME_LIMIT characters, for host names of 63",
        ),
        rule(
            "!self.metadata.name.matches('-(syncer|evaluator)$')",
            "metadata.name must not end with -syncer or -evaluator, like Services and certificates of a run",
        ),
    )

    spec: LearnerUnitSpec
    status: LearnerUnitStatus = LearnerUnitStatus()

"""`TrainingRun`: what to train, on which pools, to which target."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, create_model

from atoll_operator.api import common
from atoll_operator.api.learnerunit import MAX_STREAM
from atoll_operator.api.podtemplate import MAX_VALUE, MAX_VARIABLES, PodTemplate
from atoll_operator.api.runrules import NAME_RULES, NEW_RUN, RUN_RULES
from atoll_operator.api.sections import MAX_UNITS, EvaluatorSpec, Pool, RecoverySpec, SyncerSpec
from atoll_runtime import contract
from atoll_runtime.contract import Report, Section
from atoll_runtime.contract.rules import WHOLE, cel, checked, immutable

MAX_POOLS = 16


class TrainingRunSpec(Section):
    """Desired state of the run."""

    model_config = checked(*RUN_RULES)

    units: Annotated[int, Field(ge=0, le=MAX_POOLS * MAX_UNITS), cel(WHOLE)] | None = None
    """Units of all pools together, as `kubectl scale` sets it. They fill the pools in order, each up to its own
    `units`; the rest go to the first pool. 0 releases every chip, and the syncer waits. If not set, each pool has its
    `units`."""
    model: Annotated[contract.ModelSpec, cel(immutable(f"each unit and checkpoint has its shape; {NEW_RUN}"))]
    data: Annotated[contract.DataSpec, cel(immutable(f"the units have positions in these data; {NEW_RUN}"))]
    inner: Annotated[
        contract.InnerSpec, cel(immutable(f"all units train by the same settings; {NEW_RUN}"))
    ] = contract.InnerSpec()
    outer: Annotated[
        contract.OuterSpec, cel(immutable(f"journals and checkpoints depend on it; {NEW_RUN}"))
    ] = contract.OuterSpec()
    communication: contract.CommunicationSpec = contract.CommunicationSpec()
    quorum: contract.QuorumSpec = contract.QuorumSpec()
    target: contract.TargetSpec
    checkpoint: contract.CheckpointSpec
    pools: Annotated[tuple[Pool, ...], Field(min_length=1, max_length=MAX_POOLS), common.keyed_by("name")]
    """Where units run. Pools of different TPU generations train one model together."""
    recovery: RecoverySpec = RecoverySpec()
    syncer: SyncerSpec = SyncerSpec()
    evaluation: EvaluatorSpec | None = None
    """If set, a pod of its own measures the loss of the global model on held-out data while the run trains."""
    image: common.Image | None = None
    """Image of learners, syncer and evaluator. Defaults to the operator's image at the start of the run, which
    `status.runtime` records."""
    pod_template: PodTemplate = PodTemplate()
    """Labels, annotations, variables, volumes, pull secrets and priority of learners, syncer and evaluator."""
    queue_name: common.QueueName | None = None
    """LocalQueue of Kueue in the namespace of the run, in which each unit waits for its quota. The syncer does not
    wait."""
    queue_priority_class: common.QueueName | None = None
    """WorkloadPriorityClass of Kueue for all units. Requires `queueName`."""
    service_account_name: common.Name | None = None
    """ServiceAccount of all pods, their identity for the bucket (Workload Identity)."""
    suspend: bool = False
    """True: units and syncer release their nodes; the journal and a checkpoint of the last step stay. False again: the
    run continues at that step."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31_536_000)] | None = None
    """How long the run may take from its start, not counting suspensions. No limit if not set."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = None
    """How long after its end a complete or failed run is deleted. The bucket stays. Never if not set."""


_FIELDS: dict[str, Any] = {
    name: (each.annotation, each)
    for name, each in TrainingRunSpec.model_fields.items()
    if not each.is_required()
}
OptionalSpec = create_model("OptionalSpec", __base__=Section, **_FIELDS)
"""A spec without its required parts. Units need no others if it cannot be read as a whole."""

RunPhase = Literal[
    "Pending", "Starting", "Running", "Finishing", "Suspending", "Suspended", "Complete", "Failed"
]


class StreamRange(Report):
    """Units of one pool with consecutive numbers and consecutive streams."""

    pool: Annotated[str, Field(max_length=63)]
    """Name of the pool."""
    index: int
    """Index of the first unit."""
    units: int
    """Number of consecutive units."""
    stream: int
    """Stream of the first unit."""


class StreamsStatus(Report):
    """Which stream of the data each unit reads. Removed units keep theirs for their return."""

    base: int
    """Number of streams at the start of the run. Later streams divide these."""
    dealt: Annotated[tuple[StreamRange, ...], Field(max_length=MAX_STREAM + 1)] = ()
    """Ranges of units and their streams."""


class RuntimeStatus(Report):
    """Image and variables of the run's pods, kept until the user changes `spec.image`."""

    image: Annotated[str, Field(max_length=512)]
    """Image of learners, syncer and evaluator."""
    asked: Annotated[str, Field(max_length=512)] = ""
    """`spec.image` when the image was chosen. Empty: the operator's default at that time."""
    environment: Annotated[
        dict[str, Annotated[str, Field(max_length=MAX_VALUE)]], Field(max_length=MAX_VARIABLES)
    ] = Field(default_factory=dict)
    """The operator's variables for runtime pods at that time."""


class CheckpointStatus(Report):
    """The newest complete global checkpoint."""

    step: int | None = None
    """Its global step; absent before the first."""
    uri: contract.ReportedUri = ""
    """Folder of the run's checkpoints; empty before the first."""
    error: common.Message = ""
    """Why the last save failed; empty after a successful one."""


class EvaluationStatus(contract.EvaluationReport):
    """The newest checkpoint that was evaluated."""

    evaluated: int = 0
    """Evaluated checkpoints in the bucket."""
    skipped: int = 0
    """Checkpoints that were deleted from the bucket before they could be evaluated."""


class TrainingRunStatus(Report):
    """What the operator observed and did, as last written."""

    phase: RunPhase = "Pending"
    """Summary of the conditions in one word."""
    message: common.Message = ""
    """What the run waits for, or why it ended; for people."""
    units: int = 0
    """LearnerUnits that exist."""
    units_ready: int = 0
    """Units that learn."""
    units_wanted: int = 0
    """Units that the spec asks for in all pools, and units created by users."""
    hosts: int | None = None
    """Hosts that the limits of its namespace allow it; absent before it has begun."""
    units_updated: int = 0
    """Units with the image, batch, resources, pod template, queue and choice of nodes of the spec."""
    runtime: RuntimeStatus | None = None
    streams: StreamsStatus | None = None
    selector: Annotated[str, Field(max_length=256)] = ""
    """Label selector of the learners' pods, for `kubectl get --selector` and autoscalers."""
    units_summary: Annotated[str, Field(max_length=32)] = ""
    """`unitsReady` and `unitsWanted`, such as `3/4`."""
    global_step: int = 0
    """Global step of the syncer; with several shards, that of the one furthest behind."""
    target_steps: int | None = None
    """Global step at which the run ends; absent if `spec.target` has tokens alone."""
    progress_percent: int = 0
    """Progress towards the target, in steps or tokens, whichever is further."""
    tokens: int = 0
    """Tokens merged into the global model."""
    tokens_per_second: float = 0.0
    """Training rate of all units that learn; 0 while the syncer does not answer."""
    loss: float | None = None
    """Training loss in nats per token: mean of the units that learn, weighted by tokens. Absent before the first."""
    quorum: contract.ReportedQuorum = ""
    """Units in the last merged round, units known to the syncer, and the quorum, such as `3/3 (K=2)`."""
    bytes_in: int = 0
    """Bytes received by all shards since each one's pod started."""
    bytes_out: int = 0
    """Bytes sent by all shards since then."""
    restarts: int = 0
    """Restarts of the present units, on their hosts or on new ones."""
    lost: common.CostStatus | None = None
    """What failures cost the present units; absent if nothing."""
    last_heal_seconds: float | None = None
    """Seconds of the most recent completed heal, from the failure to the first merge after it."""
    syncer_restarts: int = 0
    """How often shards resumed from their journals, all shards together."""
    syncer_shards: int = 0
    """Number of shards that the journals are for; 0 before the first."""
    syncer_layout: int = 0
    """Number of changes of `spec.syncer.shards`; each starts new journals."""
    ledger: common.LedgerStatus | None = None
    """What became of all units' tokens, in token-fragments: divide by `fragments` for tokens."""
    checkpoint: CheckpointStatus = CheckpointStatus()
    evaluation: EvaluationStatus | None = None
    final_checkpoint: contract.ReportedUri = ""
    """URI of the checkpoint of the last step; empty until the run has reached its target."""
    start_time: common.Time | None = None
    """When the operator first reconciled the run while no limit of its namespace kept it waiting."""
    suspend_time: common.Time | None = None
    """When the present suspension began. It lasts until the run trains again; absent otherwise."""
    suspended_seconds: int = 0
    """Seconds of all finished suspensions, which `spec.activeDeadlineSeconds` does not count."""
    quorum_lost_time: common.Time | None = None
    """Since when fewer than `spec.quorum.min` units have restarts left; absent otherwise."""
    completion_time: common.Time | None = None
    """When the run became Complete or Failed."""
    conditions: common.Conditions = ()
    """Conditions (docs/trainingrun.md)."""
    observed_generation: int = 0
    """`metadata.generation` of the spec that this status is based on."""


class TrainingRun(Report):
    """One model trained on many TPU slices, none of which can stop it."""

    model_config = checked(*NAME_RULES)

    spec: TrainingRunSpec
    status: TrainingRunStatus = TrainingRunStatus()

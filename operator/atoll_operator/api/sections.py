"""Sections of `TrainingRun.spec` that only the operator reads: recovery, the syncer, the evaluator."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api import common
from atoll_operator.api.learnerunit import MAX_SLICES
from atoll_runtime.contract import EvaluationSpec, Section, SeedSource, TapeDepth
from atoll_runtime.contract.rules import WHOLE, cel, checked, immutable, immutable_field, rule

MAX_SHARDS = 64
"""Shards of a syncer."""
NEW_VOLUMES = "Kubernetes does not change the volumes of a StatefulSet; make a new TrainingRun"


class RecoverySpec(Section):
    """How a failed unit comes back, and what happens to the run when too few units do."""

    seed: SeedSource = "Checkpoint"
    """Where a restarted unit gets its state. Checkpoint: the newest complete global checkpoint in the bucket. Peer: a
    healthy unit, or the bucket if there is none. A change applies to learners that start after it."""
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 10
    """Restarts of one unit within the window, in place or with new pods. After that the unit is Failed and the others
    continue."""
    window_seconds: Annotated[int, Field(ge=60, le=604_800)] = 3600
    """Window in which the restarts of a unit are counted."""
    in_place: bool = True
    """Whether containers of a unit may restart in their pods when only its processes failed and its hosts are healthy.
    False: each failure makes new pods."""
    startup_seconds: Annotated[int, Field(ge=30, le=86_400)] = 1800
    """How long a unit may take from all its pods running until all its hosts are connected to the syncer, and from then
    until its first step."""
    node_lost_seconds: Annotated[int, Field(ge=0, le=3600)] = 3
    """How long a node may be not ready before its pods count as lost. Kubernetes marks a node not ready 40 to 55 s
    after its last heartbeat. If the operator may not read nodes, this is the toleration of the unit's pods, after which
    Kubernetes deletes them."""
    hang_seconds: Annotated[int, Field(ge=0, le=86_400)] = 900
    """How long a unit may go without a step that the syncer hears of, while its pods run and the syncer answers. An
    outage of its link counts too. 0: no limit."""
    force_delete: bool = False
    """Whether pods that are still terminating 30 s after their grace period are deleted by force. Units do not wait for
    such pods, but the syncer and the evaluator cannot move to another node before. After a forced deletion the
    scheduler considers their chips free although the node has not confirmed it."""
    audit: Annotated[int, Field(ge=200, le=1_000_000)] | None = None
    """Global steps between two audits, in which each unit evaluates the same examples with the same version of the
    global model; one whose result differs becomes Suspect. No audits if not set. A change applies to learners that
    start after it."""
    below_quorum: Literal["Wait", "Fail"] = "Wait"
    """What to do when fewer than `quorum.min` units have restarts left. Wait: wait until somebody repairs or adds
    units. Fail: fail the run."""
    below_quorum_seconds: Annotated[int, Field(ge=0, le=604_800)] = 600
    """With Fail: how long the run may stay below its quorum."""


class SyncerSpec(Section):
    """The syncer: CPU-only pods that merge, each with a volume for its journal."""

    model_config = checked(immutable_field("storageClassName", NEW_VOLUMES))

    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS), cel(WHOLE)] = 1
    """Pods of the syncer. Each merges whole pieces of every fragment; the loss of one stalls only its tensors. Can be
    changed while the run is suspended: the run then continues from its newest complete checkpoint."""
    tape: Annotated[TapeDepth, cel(immutable("a tape has one depth; make a new TrainingRun"))] = "Decisions"
    """What the event tape on each shard's volume records. Decisions: every event and decision. Contributions: also the
    contributions, so that `atoll replay` can compute the model again."""
    resources: common.Resources = common.Resources(requests={"cpu": "100m", "memory": "1Gi"})
    node_selector: common.NodeSelector = Field(default_factory=dict)
    """Labels of the nodes for the syncer's pods."""
    tolerations: common.Tolerations = ()
    """Tolerations of the syncer's pods."""
    storage_class_name: common.Subdomain | None = None
    """StorageClass of the volumes. The default class of the cluster if not set."""
    storage: Annotated[
        common.Quantity,
        cel(rule("string(self).matches('^[0.]*[1-9]')", "must be above 0"), immutable(NEW_VOLUMES)),
    ] = "1Gi"
    """Size of each shard's volume."""


class EvaluatorSpec(EvaluationSpec):
    """The evaluator: a CPU-only pod that evaluates each complete checkpoint, the newest first. Training does not wait
    for it."""

    final_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """How long the pod stays after the run is complete, to evaluate the final checkpoint."""
    resources: common.Resources = common.Resources(requests={"cpu": "100m", "memory": "512Mi"})
    node_selector: common.NodeSelector = Field(default_factory=dict)
    """Labels of the nodes for the evaluator's pod."""
    tolerations: common.Tolerations = ()
    """Tolerations of the evaluator's pod."""
    image: common.Image | None = None
    """Image of the evaluator. Defaults to `spec.image`."""


MAX_UNITS = 256
"""Units of one pool."""
OF_ONE_KIND = "all units of a pool have slices of one kind; add a pool with another name and remove this one"
BOUGHT_ALIKE = "all units of a pool have the same capacity; add a pool with another name and remove this one"


class Pool(Section):
    """Units of one kind. Each has one TPU slice of this accelerator and topology, or several."""

    model_config = checked(
        *common.slice_rules("slicesPerUnit"),
        rule(
            "!has(self.capacity) || self.capacity != 'FlexStart' || (self.accelerator + ' ' + self.topology + "
            "(has(self.machineType) ? ' ' + self.machineType : '')) in FLEX_START",
            "FlexStart is offered only for slices of one host of FLEX_ACCELERATORS; use another capacity",
            "capacity",
        ),
        rule(
            "(has(self.capacity) && self.capacity == 'Reservation') == has(self.reservationName)",
            "must be given with capacity Reservation, and only then",
            "reservationName",
        ),
        immutable_field("machineType", OF_ONE_KIND),
        immutable_field("slicesPerUnit", OF_ONE_KIND, "1"),
        immutable_field("capacity", BOUGHT_ALIKE, "'OnDemand'"),
        immutable_field("reservationName", BOUGHT_ALIKE),
    )

    name: Annotated[str, Field(min_length=1, max_length=30, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the pool. Its units are named RUN-NAME-0, RUN-NAME-1 and so on."""
    accelerator: Annotated[common.Accelerator, cel(immutable(OF_ONE_KIND))]
    """Accelerator of the slices: value of the node label cloud.google.com/gke-tpu-accelerator."""
    topology: Annotated[common.Topology, cel(immutable(OF_ONE_KIND))]
    """Topology of a slice: value of the node label cloud.google.com/gke-tpu-topology."""
    machine_type: common.Label | None = None
    """Machine type. Required only where the topology exists on several, such as 2x4 of v5e and v6e."""
    units: Annotated[int, Field(ge=0, le=MAX_UNITS), cel(WHOLE)]
    """Units of the pool. Can be changed while the run trains; units with the highest numbers are removed first."""
    slices_per_unit: Annotated[int, Field(ge=1, le=MAX_SLICES)] = 1
    """Slices of one unit, which form one mesh and fail together. More than one requires slices of several hosts."""
    batch: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """Sequences of one unit in one inner step. Defaults to `spec.inner.batch`."""
    link: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Gbit/s of a unit's link to the syncer, in each direction. The operator does not use it; `atoll simulate plan`
    shows what it means for the run."""
    capacity: Literal["OnDemand", "Spot", "Reservation", "FlexStart"] = "OnDemand"
    """Capacity of the nodes. Spot nodes can be taken away at any time. Reservation uses `reservationName`. FlexStart
    waits for nodes in GKE's queue; only for slices of one host, and not for every accelerator."""
    reservation_name: common.ServiceName | None = None
    """Specific reservation that the nodes were made from. Required with capacity Reservation, and only then allowed."""
    node_selector: common.NodeSelector = Field(default_factory=dict)
    """Labels of the nodes, besides those of accelerator, topology and capacity."""
    tolerations: Annotated[tuple[common.Toleration, ...], Field(max_length=15)] = ()
    """Tolerations besides those for TPU nodes and for `capacity`, which the operator adds."""
    resources: common.Resources = common.Resources()

"""Sections of `TrainingRun.spec` that the operator alone reads: recovery, the syncer, the evaluator."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import NodeSelector, Quantity, Resources, Tolerations
from atoll_runtime.contract import EvaluationSpec, Section, SeedSource, TapeDepth

MAX_SHARDS = 64
"""Shards of a syncer."""


class RecoverySpec(Section):
    """How a unit that failed comes back, and what becomes of the run when too few do."""

    seed: SeedSource = "Checkpoint"
    """Checkpoint: the newest complete global checkpoint in the bucket. Peer: a healthy unit, and the bucket where
    there is none. A change counts for the units that are re-created after it."""
    max_restarts: Annotated[int, Field(ge=0, le=1000)] = 10
    """Restarts of one unit within the window, in place or by a new gang; after that the unit is Failed and the others
    go on."""
    window_seconds: Annotated[int, Field(ge=60, le=604_800)] = 3600
    """In which restarts of a unit are counted."""
    in_place: bool = True
    """Whether the containers of a unit may restart in their pods when its processes alone failed and its hosts are
    healthy; else each failure makes new pods."""
    startup_seconds: Annotated[int, Field(ge=30, le=86_400)] = 1800
    """From the moment that all pods of a unit run until all its hosts are connected to the syncer, and from then until
    its first step."""
    node_lost_seconds: Annotated[int, Field(ge=0, le=3600)] = 3
    """For which a node may be not ready before its pods count as lost. Kubernetes calls a node not ready 40 to 55 s
    after its last sign of life. Where the operator may not see nodes it is the toleration of a unit's pods, by which
    Kubernetes deletes them."""
    hang_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """For which no step may end while the pods run and the syncer answers; 0: for ever."""
    force_delete: bool = False
    """Whether pods that are still terminating 30 s after their time are deleted by force. No heal of a unit waits for
    them, but the syncer and the evaluator have no successor on another node before. By force the scheduler takes
    their chips for free although the node has not said so."""

    below_quorum: Literal["Wait", "Fail"] = "Wait"
    """When so many units are out of restarts that fewer than `quorum.min` are left: wait for somebody to mend or add
    units, or fail the run."""
    below_quorum_seconds: Annotated[int, Field(ge=0, le=604_800)] = 600
    """With Fail: how long the run may stay below its quorum."""


class SyncerSpec(Section):
    """The CPU-only pods that merge, each with a volume for its journal."""

    shards: Annotated[int, Field(ge=1, le=MAX_SHARDS)] = 1
    """Pods, each of which merges whole tensors of every fragment; the loss of one stalls its tensors alone. Can be
    changed while the run is suspended: it then goes on from its newest complete checkpoint."""
    tape: TapeDepth = "Decisions"
    """What the event tape on each shard's volume holds: every event and decision, or the contributions too, so that
    `atoll replay` computes the model anew."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "1Gi"})
    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the nodes for its pods."""
    tolerations: Tolerations = ()
    """Of its pods."""
    storage_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The cluster's default class where not given."""
    storage: Quantity = "1Gi"
    """Of each shard's volume."""


class EvaluatorSpec(EvaluationSpec):
    """The CPU-only pod that evaluates the global model, each complete checkpoint, the newest first. Training does not
    wait for it."""

    final_seconds: Annotated[int, Field(ge=0, le=86_400)] = 600
    """For which the pod outlives a run that is complete, to evaluate the final checkpoint."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "512Mi"})
    node_selector: NodeSelector = Field(default_factory=dict)
    """Labels of the nodes for its pod."""
    tolerations: Tolerations = ()
    """Of its pod."""
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """`spec.image` where not given."""

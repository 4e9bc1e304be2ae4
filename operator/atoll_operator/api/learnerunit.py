"""`LearnerUnit`: one island of a run, created by its run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atoll_operator.api.common import CostStatus, LedgerStatus, NodeSelector, Resources, Tolerations
from atoll_operator.api.conditions import Conditions, Message, Time
from atoll_runtime.contract import Report, Section

MAX_RESTARTS = 1024
"""Re-creations that a status remembers."""


MAX_STREAM = 8191
"""Twice the units that a run may have at once: streams of units that are gone are kept for their return."""


class LearnerUnitSpec(Section):
    """One TPU slice of a run."""

    run: Annotated[str, Field(min_length=1, max_length=63)]
    pool: Annotated[str, Field(min_length=1, max_length=63)]
    accelerator: Annotated[str, Field(max_length=63)]
    topology: Annotated[str, Field(max_length=16)]
    machine_type: Annotated[str, Field(max_length=63)] | None = None
    slices: Annotated[int, Field(ge=1, le=1)] = 1
    batch: Annotated[int, Field(ge=1, le=1_048_576)]
    stream: Annotated[int, Field(ge=0, le=MAX_STREAM)]
    """The unit's slot among `streams` disjoint data streams."""
    streams: Annotated[int, Field(ge=1, le=2 * (MAX_STREAM + 1))]
    image: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    """Of its pods; that of its run where not given. A change of it, of `batch`, `resources`, `nodeSelector` or
    `tolerations` makes the unit's next incarnation."""
    node_selector: NodeSelector = Field(default_factory=dict)
    tolerations: Tolerations = ()
    resources: Resources = Resources()


class Restart(Report):
    """One re-creation of the gang."""

    time: Time
    reason: Annotated[str, Field(max_length=256)]


class Failure(Report):
    """Why the gang was last re-created, or is about to be."""

    reason: Annotated[str, Field(max_length=256)]
    message: Message = ""
    pod: Annotated[str, Field(max_length=253)] = ""
    node: Annotated[str, Field(max_length=253)] = ""
    exit_code: int | None = None
    time: Time


UnitPhase = Literal[
    "Pending", "Scheduling", "Starting", "Joining", "Learning", "Healing", "Suspended", "Finished", "Failed"
]


class LearnerUnitStatus(Report):
    """What is the case."""

    phase: UnitPhase = "Pending"
    message: Message = ""
    incarnation: int = 0
    """Goes up before each re-creation; fences off every older process."""
    placed_incarnation: int = 0
    """The incarnation all of whose pods were created; from then on a missing pod is a failure."""
    restarts: Annotated[tuple[Restart, ...], Field(max_length=MAX_RESTARTS)] = ()
    """Those within the budget's window."""
    restart_count: int = 0
    last_failure: Failure | None = None
    last_heal_seconds: float | None = None
    heal_start_time: Time | None = None
    """While the unit heals."""
    step: int = 0
    tokens: int = 0
    loss: float | None = None
    tokens_per_second: float = 0.0
    staleness: int = 0
    """Global steps since its last merge."""
    contributions: int = 0
    share_percent: float = 0.0
    """Of all tokens that were merged."""
    lost: CostStatus | None = None
    """What its failures cost; None before the first."""
    seeded_step: int | None = None
    ledger: LedgerStatus | None = None
    """What became of this unit's tokens."""
    conditions: Conditions = ()
    observed_generation: int = 0


class LearnerUnit(Report):
    """One island of a TrainingRun: a TPU slice that trains on its own clock and heals alone."""

    spec: LearnerUnitSpec
    status: LearnerUnitStatus = LearnerUnitStatus()

"""One run and its units as the operator observes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

from atoll_operator.api.common import Condition
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.conditions import ABSENT, find, is_true, parse_time
from atoll_operator.plan.limits import Room
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE
from atoll_operator.plan.unit.waiting import HOLDS, QUEUED
from atoll_runtime.contract import EvaluatorStatus

_PLACING = ("resources", "node_selector", "tolerations", "pod_template", "queue_name", "queue_priority_class")
PLACING = attrgetter(*_PLACING)
"""Fields of a LearnerUnit that may change, and whose change may leave it without hosts."""
ROLLED = attrgetter("image", "batch", *_PLACING)
"""Fields that may change; the API server refuses changes of the others."""
KIND = attrgetter("accelerator", "topology", "machine_type", "slices")
"""Fields that define the slice. They differ if a pool is removed and another of the same name is added."""
PLACED_PHASES = ("Scheduling", "Starting", "Joining", "Learning")
"""Phases of a unit that has pods, or is about to."""
PATIENCE_SECONDS = 600.0
"""After this time the run does not count on a unit that has lost the syncer or finds no hosts."""


@dataclass(frozen=True, kw_only=True)
class UnitFacts:
    """One LearnerUnit as its run sees it. It is kept as long as the object does not change."""

    name: str
    run: str
    """Name of the run in its spec."""
    status: LearnerUnitStatus
    spec: LearnerUnitSpec | None = None
    """None if this version cannot read it."""
    uid: str = ""
    owned: bool = True
    """Owned by this run and not being deleted."""
    by_hand: bool = False
    """Created by a user and not being deleted: it learns with the others, but the operator does not change it."""
    generation: int = 0
    ours: bool = True
    """Created by this run or by a user, also while it is being deleted; otherwise it belongs to an earlier run."""

    @cached_property
    def rolled(self) -> object:
        return None if self.spec is None else ROLLED(self.spec)

    @cached_property
    def kind(self) -> object:
        return None if self.spec is None else KIND(self.spec)

    @cached_property
    def learns(self) -> bool:
        """Whether it learns, maybe with an earlier spec."""
        return is_true(self.status.conditions, "Learning")

    @cached_property
    def learning(self) -> bool:
        """Whether it learns, with its present spec."""
        return self.learns and self.status.observed_generation == self.generation

    @cached_property
    def healed(self) -> tuple[float, float] | None:
        """When its last heal began, in Unix seconds, and its seconds."""
        heal = self.status.last_heal
        return None if heal is None else (parse_time(heal.started_at), heal.seconds)

    @cached_property
    def hold(self) -> Condition | None:
        """The condition by which it waits until somebody else acts."""
        parts = (find(self.status.conditions, name) for name in ("Scheduled", "PodsReady"))
        return next((part for part in parts if part.status == "False" and part.reason in HOLDS), None)

    def idle(self, serving_since: float | None, now: float) -> bool:
        """Whether nothing is lost with its pods: it has none, or has merged nothing, or nothing for ten minutes. That
        it does not learn is not enough, because no unit does for some seconds after a restart of the syncer. The whole
        syncer serves since `serving_since`; None if it does not."""
        if self.learning:
            return False
        status, learning = self.status, find(self.status.conditions, "Learning")
        merged = status.phase in PLACED_PHASES and 0 < status.merged_incarnation == status.incarnation
        if not merged or learning is ABSENT:
            return True
        if learning.status != "False" or serving_since is None:
            return False
        return max(parse_time(learning.last_transition_time), serving_since) + PATIENCE_SECONDS <= now

    def homeless(self, now: float) -> bool:
        """Whether it has waited for hosts for ten minutes."""
        scheduled = find(self.status.conditions, "Scheduled")
        waits = scheduled.reason in (CAPACITY_UNAVAILABLE, QUEUED)
        return waits and parse_time(scheduled.last_transition_time) + PATIENCE_SECONDS <= now


@dataclass(frozen=True, slots=True)
class EvaluatorState:
    """The evaluator's last good answer, and whether it answers now."""

    status: EvaluatorStatus | None = None
    reason: str = ""
    """Why the last poll failed; empty after a good one."""
    message: str = ""

    def heard(self, status: EvaluatorStatus, _: float) -> EvaluatorState:
        return EvaluatorState(status)

    def missed(self, reason: str, message: str) -> EvaluatorState:
        return replace(self, reason=reason, message=message)


@dataclass(frozen=True, kw_only=True)
class RunObserved:
    name: str
    namespace: str
    uid: str
    generation: int
    spec: TrainingRunSpec
    status: TrainingRunStatus
    unknown: Mapping[str, Any] = field(default_factory=dict)
    configured: bool = False
    """Its ConfigMap exists."""
    settings: PodSettings
    units: Mapping[str, UnitFacts]
    """By name: all LearnerUnits of the namespace that have the name of one of this run's units, or name this run."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    syncer_pods: tuple[PodView, ...] = ()
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    """Nodes of the syncer's and the evaluator's pods, if the operator may watch nodes."""
    syncer: SyncerState = field(default_factory=SyncerState)
    evaluator: EvaluatorState = field(default_factory=EvaluatorState)
    evaluator_pods: tuple[PodView, ...] = ()
    room: Room = field(default_factory=lambda: Room(None))
    """What the limits of its namespace leave it, unless it is suspended or over."""

    def knows(self, *sections: str) -> bool:
        """Whether this version knows all of these sections of the spec."""
        return not {path.split(".")[1] for path in self.unknown}.intersection(sections)

    @property
    def waits(self) -> str:
        """Why it may not begin; empty if it may."""
        return self.room.message if self.room.hosts is None else ""

    @property
    def layout(self) -> int:
        """Number of changes of `syncer.shards`, including one that the status does not show yet."""
        return self.status.syncer_layout + (self.status.syncer_shards not in (0, self.spec.syncer.shards))

    @property
    def merged(self) -> bool:
        report = self.syncer.status
        return self.status.global_step > 0 or (report is not None and report.global_step > 0)

    @cached_property
    def own_units(self) -> dict[str, UnitFacts]:
        """Units that name this run, in order of their names."""
        return {name: unit for name, unit in sorted(self.units.items()) if unit.run == self.name}

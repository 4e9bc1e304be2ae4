"""What is known of one LearnerUnit when it is planned, and the plan for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus, Restart, UnitPhase
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import (
    Notice,
    State,
    clip,
    find,
    is_true,
    parse_time,
    skew,
    state,
    transition,
)
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.names import pod_name
from atoll_operator.plan.pods.template import PodSettings, digest
from atoll_operator.plan.pods.topology import Slice, slice_of
from atoll_operator.plan.pods.view import PodView, Removal
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit.failure import SUSPECT
from atoll_operator.plan.unit.link import adequate
from atoll_runtime.contract import Codec, CommunicationSpec, UnitReport

RUN_NOT_FOUND = "RunNotFound"
Stop = Literal["", "Suspended", "Finished", "RunNotFound"]
"""Why the units of a run have no pods; empty if they have."""
BACK_OFF = "BackOff"
"""Reason of `Healing` while a lost unit waits for its next restart."""
SKEW_SECONDS = 60.0
"""How far the clock of an earlier operator may be ahead. A later time comes from a wrong clock."""
_NO_SETTINGS = PodSettings(run="", image="", pull_policy="", environment={})
"""Settings of a unit without a run, which has no pods."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The last observed progress of one unit, first seen at `since`."""

    incarnation: int
    step: int
    stepped: bool
    """Whether this incarnation has ended a step. The first step includes compilation."""
    since: float


@dataclass(frozen=True, kw_only=True)
class UnitObserved:
    """One unit as it is. Times are Unix seconds."""

    now: float
    name: str
    namespace: str
    uid: str
    owned: bool = True
    """Whether a run made it, not a user."""
    generation: int
    spec: LearnerUnitSpec
    status: LearnerUnitStatus
    pods: tuple[PodView, ...]
    earlier: tuple[PodView, ...] = ()
    """Of a new unit: pods of an earlier one of its name. Their names are taken until their nodes let them go."""
    unknown: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    # What its run wants

    stop: Stop = ""
    waits: str = ""
    """Which limit of its namespace keeps it from its hosts."""
    recovery: RecoverySpec = field(default_factory=RecoverySpec)
    communication: CommunicationSpec = field(default_factory=CommunicationSpec)
    codec: Codec = "bf16"
    settings: PodSettings = _NO_SETTINGS
    begun: bool = False
    """Whether something was merged: then the syncer may know incarnations of an earlier unit of the same name."""

    syncer: SyncerState = field(default_factory=SyncerState)
    pace: Pace | None = None

    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    """The nodes of its pods, as far as the operator may see them."""
    sees_nodes: bool = False
    sound_chips: Mapping[str, int] = field(default_factory=dict)
    """By node pool of the unit's accelerator, topology and machine type, the chips of its sound nodes."""

    @property
    def report(self) -> UnitReport | None:
        """The syncer's report. None if the syncer does not know the unit or does not answer."""
        return self.syncer.report_of(self.name)

    @property
    def current_report(self) -> UnitReport | None:
        """The report of this incarnation. None also if the syncer has not heard of that yet."""
        report = self.report
        return report if report is not None and report.incarnation == self.status.incarnation else None

    @cached_property
    def pod_settings(self) -> PodSettings:
        """Settings of the unit's pods: those of the run, unless the unit's spec has its own."""
        own, spec = self.settings, self.spec
        return replace(own, image=spec.image or own.image, template=spec.pod_template or own.template)

    @cached_property
    def contract(self) -> str:
        """Digest of what the run says of its pods. All pods of a mesh must have the same."""
        return digest(self.pod_settings)

    @cached_property
    def slice(self) -> Slice:
        """Raises ValueError like `slice_of`."""
        return slice_of(self.spec.accelerator, self.spec.topology, self.spec.machine_type)

    @property
    def hosts(self) -> int:
        """Hosts of all slices. The first slice has the first hosts, and so on."""
        return self.spec.slices * self.slice.hosts

    def host_name(self, host: int | str) -> str:
        """DNS name of one host, or with a text in place of its number."""
        return f"{pod_name(self.name, self.status.placement, host)}.{self.name}.{self.namespace}.svc"

    @property
    def chips(self) -> int:
        return self.hosts * self.slice.chips_per_host

    @cached_property
    def poor_pools(self) -> tuple[str, ...]:
        """Node pools of its kind that have too few sound hosts for a slice."""
        needed = self.slice.hosts * self.slice.chips_per_host
        return tuple(sorted(pool for pool, chips in self.sound_chips.items() if chips < needed))

    def pool_of(self, pod: PodView) -> str:
        """The pod's node pool; empty if it is not known."""
        node = self.nodes.get(pod.node)
        return pod.pool or (node.pool if node is not None else "")

    @property
    def spec_changed(self) -> bool:
        """The spec changed after the status was written, so the pods are those of the old one."""
        return self.status.observed_generation not in (0, self.generation)

    @property
    def known_incarnation(self) -> int:
        """The newest incarnation of this name that the syncer or a pod knows. It may belong to an earlier unit. An own
        pod that is newer than the status shows that the status is an old one; then no write of it succeeds."""
        return max(
            self.syncer.incarnation_of(self.name), *(pod.made_for for pod in (*self.pods, *self.earlier)), 0
        )

    @cached_property
    def met(self) -> bool:
        """Whether all hosts of this incarnation are, or were, connected to the syncer."""
        current = self.current_report
        return is_true(self.status.conditions, "Seeded") or bool(current and current.hosts >= self.hosts)

    def is_asked(self, annotation: str) -> bool:
        """Whether a user asks for something by annotation. The value is the incarnation that should end, so that a
        request is carried out once, however late it is read."""
        return self.annotations.get(annotation) == str(self.status.incarnation)

    @property
    def stepped(self) -> float | None:
        """When the last step of this incarnation was seen to end."""
        pace = self.pace
        if pace is None or not pace.stepped or pace.incarnation != self.status.incarnation:
            return None
        return pace.since

    @property
    def last_restart(self) -> Restart | None:
        """The last restart; None before the first. One in the future comes from a wrong clock and is ignored."""
        last = self.status.restarts[-1] if self.status.restarts else None
        return None if last is None or parse_time(last.time) > self.now + SKEW_SECONDS else last

    @property
    def restarted_at(self) -> float | None:
        """When the restart that began this incarnation was decided. None if the unit was given new hosts for it."""
        last = self.last_restart
        if self.status.incarnation == self.status.placement or last is None:
            return None
        return parse_time(last.time)

    def renewed(self, pod: PodView) -> bool:
        """Whether no process of the last incarnation runs in this pod any more."""
        since, incarnation = self.restarted_at, self.status.incarnation
        if since is None:
            return True
        if pod.made_for == incarnation:
            return pod.started_at is not None
        return pod.ended_incarnation == incarnation - 1 or (pod.started_at or 0.0) >= since

    def written(
        self, status: LearnerUnitStatus, phase: UnitPhase, message: str, states: Mapping[str, State]
    ) -> LearnerUnitStatus:
        cause, suspect = status.last_failure, state(False, "NotSuspect")
        if phase == "Failed" or status.heal_start_time:
            if cause is not None and cause.reason == SUSPECT:
                suspect = state(True, SUSPECT, cause.message)
            elif is_true(self.status.conditions, SUSPECT):  # another failure came before a merge
                suspect = state(True, SUSPECT, find(self.status.conditions, SUSPECT).message)
        every = {**states, **adequate(status.link, self.codec, self.communication), "Suspect": suspect}
        every |= skew(self.unknown)
        conditions = transition(self.status.conditions, every, self.generation, self.now)
        update = {"phase": phase, "message": clip(message), "conditions": conditions}
        return status.model_copy(update=update | {"observed_generation": self.generation})


def lost(reason: str, message: str) -> dict[str, State]:
    """The conditions of a unit whose incarnation is lost."""
    states = dict.fromkeys(("Scheduled", "PodsReady", "Seeded", "Learning"), state(False, reason))
    return states | {"Healing": state(True, reason, message), "Draining": state(False, "NotDraining")}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """What to do. With `advance` only the status is written, over its version, and the next plan acts on it."""

    status: LearnerUnitStatus
    advance: bool = False
    needs_fresh_list: bool = False
    """The plan follows from a missing pod. A watch that lags looks the same, so list the pods and plan again."""
    service: Object | None = None
    create: tuple[Callable[[], Object], ...] = ()
    """Functions that make the body of each pod when it is sent."""
    remove: tuple[Removal, ...] = ()
    renew: tuple[PodView, ...] = ()
    """Pods whose annotation gets the incarnation in `status`; their process restarts for it."""
    members: tuple[PodView, ...] | None = None
    """The pods that stay, in order of hosts, if the unit runs. `status.describe` follows if no pod comes or goes."""
    notices: tuple[Notice, ...] = ()
    wake: float | None = None
    """When to plan again without an event."""

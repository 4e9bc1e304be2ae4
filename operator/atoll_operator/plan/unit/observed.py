"""What is known of one LearnerUnit when it is planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import is_true
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.hang import Pace
from atoll_runtime.contract import UnitReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What the run wants of its units."""

    stop: Literal["", "Suspended", "Finished"]
    finishing: bool
    """The target is reached and the syncer does the rest: pods may end, and none is replaced."""
    recovery: RecoverySpec
    settings: PodSettings
    begun: bool = False
    """Something was merged, so that the syncer may know incarnations of an earlier unit of the same name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitObserved:
    """One unit as it is."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: LearnerUnitSpec
    status: LearnerUnitStatus
    pods: tuple[PodView, ...]
    """All pods that this unit owns."""
    orders: Orders | None
    """None when there is no such run."""
    report: UnitReport | None = None
    """The syncer's; None when it knows no such unit or does not answer."""
    ledger: LedgerStatus | None = None
    """The unit's token ledger, as last known."""
    share: float | None = None
    """Share of all merged tokens, 0 to 1, as last known."""
    answering_since: float | None = None
    """Unix seconds since which all of the syncer answers; None while any of it does not."""
    heard: float | None = None
    """Unix seconds of the syncer's last answer, which `report` is from; None: now."""
    pace: Pace | None = None
    """The unit's last observed progress; None while nothing is known."""
    nodes: Mapping[str, NodeView] = field(default_factory=dict)
    """The nodes of its pods, as far as the operator may see them."""
    sees_nodes: bool = False
    """The operator sees the cluster's nodes."""
    sound_chips: Mapping[str, int] = field(default_factory=dict)
    """By node pool of the unit's accelerator and topology, the chips of its sound nodes."""

    @property
    def spec_changed(self) -> bool:
        """The spec changed after the status was written: the pods are those of the old one."""
        return self.status.observed_generation not in (0, self.generation)

    @property
    def known_incarnation(self) -> int:
        """The newest incarnation of this name that the syncer knows. It may be of an earlier unit."""
        return self.report.incarnation if self.report is not None else 0

    def met(self, hosts: int) -> bool:
        """Whether all hosts of this incarnation are, or were, connected to the syncer."""
        report = self.report
        return is_true(self.status.conditions, "Seeded") or (
            report is not None and report.incarnation == self.status.incarnation and report.hosts >= hosts
        )

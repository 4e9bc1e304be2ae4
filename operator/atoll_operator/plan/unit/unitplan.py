"""What to do for one LearnerUnit in one pass."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll_operator.api.group import Object
from atoll_operator.api.learnerunit import HealStages, LearnerUnitStatus
from atoll_operator.plan.conditions import clip, state, states_of, transition
from atoll_operator.plan.notice import Notice
from atoll_operator.plan.removal import Removal


@dataclass(frozen=True, slots=True)
class Renewal:
    """A pod whose process should take another incarnation."""

    name: str
    uid: str
    incarnation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """What to do. With `advance` only the status is written, guarded by its version; the next plan acts on it."""

    status: LearnerUnitStatus
    advance: bool = False
    doubtful: bool = False
    """It follows from the absence of something, which a lagging watch would show too: confirm it by a fresh list."""
    service: Object | None = None
    create: tuple[Object, ...] = ()
    remove: tuple[Removal, ...] = ()
    renew: tuple[Renewal, ...] = ()
    notices: tuple[Notice, ...] = ()
    wake: float | None = None
    """Unix seconds of the next look without an event."""
    healed_seconds: float | None = None
    """Duration of a heal that this plan sees completed."""
    heal_stages: HealStages | None = None
    """Stages of the last heal, once: when all of them have become known."""


def refused(plan: UnitPlan, old: LearnerUnitStatus, message: str, now: float) -> UnitPlan:
    """The same plan with a status that says why the API server refuses the unit's objects.

    Args:
        old: the status before this pass.
    """
    shown = states_of(plan.status.conditions) | {"Scheduled": state(False, "ObjectRefused", message)}
    status = plan.status
    conditions = transition(old.conditions, shown, status.observed_generation, now)
    return replace(
        plan, status=status.model_copy(update={"message": clip(message), "conditions": conditions})
    )

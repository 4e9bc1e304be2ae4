"""A change that pods have to be made anew for goes from unit to unit, under the quorum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.run.objects import UnitFacts

ROLLED = (
    "image",
    "batch",
    "resources",
    "node_selector",
    "tolerations",
    "pod_template",
    "queue_name",
    "queue_priority_class",
)
"""Fields of a LearnerUnit that may change; the API server refuses the others."""
PLACING = tuple(name for name in ROLLED if name not in ("image", "batch"))
"""Those for which a unit may find no hosts."""
KIND = ("accelerator", "topology", "machine_type", "slices")
"""Fields that make it another slice. A pool of the same name that was removed and added again may have others."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What to change now, and what is still to come."""

    now: tuple[str, ...] = ()
    """Units that get their new spec in this pass."""
    outdated: tuple[str, ...] = ()
    """Units that have another spec than is wanted, those of `now` included."""
    message: str = ""
    """Why the others wait; empty when there are none."""


def plan_rollout(
    units: Mapping[str, UnitFacts],
    wanted: Mapping[str, LearnerUnitSpec],
    quorum: int,
    serving_since: float | None,
    now: float,
) -> Rollout:
    """The next step.

    An idle unit has nothing to lose and is changed at once: so a broken image can be mended. One that learns, or did
    and has lost the syncer, is changed when every other one learns and K others are left; so at most one is away at a
    time. A unit with the new spec that has found no hosts for ten minutes holds nobody up, unless what is rolled says
    where pods may go (and before that its chips may have been lost by the rollout itself); one that failed with it
    does.

    Args:
        units: those that exist; of those made by hand it counts who learns.
        wanted: specs of the units that are wanted, by name.
        quorum: K.
        serving_since: Unix seconds since which the whole syncer serves, so that what units say of themselves is true
            now; None: it does not.
    """
    own = {name: unit for name, unit in units.items() if unit.owned and name in wanted}
    outdated = tuple(name for name, unit in sorted(own.items()) if _differs(unit, wanted[name], ROLLED))
    idle = tuple(name for name in outdated if own[name].idle(serving_since, now))
    if not outdated:
        return Rollout()
    others = {name: unit for name, unit in units.items() if unit.by_hand}
    learning = {name for name, unit in (own | others).items() if unit.learning}
    total = len(wanted.keys() | others.keys())
    waiting = [name for name in outdated if name not in idle]
    if idle or not waiting:
        return Rollout(
            idle, outdated, f"{len(waiting)} of {total} units wait for their turn" if waiting else ""
        )
    left = f"{len(waiting)} of {total} units have yet to be made anew for the new spec"
    if serving_since is None:
        return Rollout((), outdated, f"{left}; waits for the syncer")
    chosen = min(waiting, key=lambda name: (name in learning, name))
    moves = _differs(
        own[chosen], wanted[chosen], PLACING
    )  # then what is rolled may be why there are no hosts
    homeless = {name for name in own.keys() - outdated if not moves and own[name].homeless(now)}
    if len((learning | homeless) - {chosen}) < total - 1:
        return Rollout((), outdated, f"{left}; waits until all others learn, {len(learning)} of {total} do")
    if len(learning - {chosen}) < quorum:
        return Rollout(
            (),
            outdated,
            f"{left}; quorum.min {quorum} of {total} units spares none: lower it or add a unit",
        )
    return Rollout((chosen,), outdated, left)


def of_another_kind(unit: UnitFacts, wanted: LearnerUnitSpec) -> bool:
    """It has to go, and its successor of the same name to be made anew."""
    return _differs(unit, wanted, KIND)


def _differs(unit: UnitFacts, wanted: LearnerUnitSpec, fields: Iterable[str]) -> bool:
    has = unit.spec
    return has is not None and any(
        getattr(has, name) != getattr(wanted, name) and _said(has, name) != _said(wanted, name)
        for name in fields
    )


def _said(spec: LearnerUnitSpec, name: str) -> Any:
    """A section that says nothing is none: units from before it existed lack it, and are not outdated by that."""
    value = getattr(spec, name)
    empty = isinstance(value, BaseModel) and not value.model_dump(exclude_defaults=True)
    return None if empty else value

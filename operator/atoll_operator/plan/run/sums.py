"""Figures of a run that add up over units or syncer pods, and must not fall when one of these is deleted.

What a sum had and the present parts do not explain belongs to deleted parts. This needs no list of them. A unit's last
change is missing if the operator dies before it writes the run's status, and so is what other units add in the same
second in which a unit is deleted. A heal under way that ends with the deletion of its unit is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll_operator.api.common import CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.trainingrun import DeletedUnits, TrainingRunStatus
from atoll_operator.plan import cost


def carried(total: int, earlier: int, present: int) -> int:
    """The share of deleted parts in a sum.

    Args:
        total: the sum as last written.
        earlier: the result then.
        present: the sum over the parts that exist now.
    """
    return max(earlier, total - present)


def unit_sums(old: TrainingRunStatus, units: Sequence[LearnerUnitStatus]) -> dict[str, object]:
    """`restarts`, `lost` and `deletedUnits` of a run, from its status as last written and its present units."""
    before = old.deleted_units or DeletedUnits()
    restarts = sum(unit.restart_count for unit in units)
    deleted_restarts = carried(old.restarts, before.restarts, restarts)
    known, nothing = cost.names(old.lost), CostStatus()
    present = cost.total([unit.lost for unit in units if unit.lost is not None], known)
    deleted_lost = cost.carried(old.lost or nothing, before.lost or nothing, present)
    deleted = DeletedUnits(restarts=deleted_restarts, lost=None if deleted_lost == nothing else deleted_lost)
    lost = cost.total([deleted_lost, present], known)
    return {
        "restarts": deleted_restarts + restarts,
        "lost": None if lost == nothing else lost,
        "deleted_units": None if deleted == DeletedUnits() else deleted,
    }

"""Totals of a run: what its units have on their accounts, and what those that are gone had. They never fall.

A unit's account goes to the run's in one write of the run's status, which names the unit; only after it the unit is
removed. So whoever dies in between, it is counted once. A unit that somebody else deletes is counted when that is seen;
where nobody saw it, what the total had and the units do not explain was that unit's.

A heal that is under way is on no account yet. It ends with the unit: when that is counted as gone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from atoll_operator.api.common import CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.pool import MAX_UNITS
from atoll_operator.api.trainingrun import MAX_POOLS, DepartedStatus, TrainingRunStatus
from atoll_operator.plan import cost
from atoll_operator.plan.unit import heal
from atoll_operator.plan.unit.heal import OpenHeal

KEPT = 16
"""Units that stay named after they are gone: an operator that takes over may hear of their end late."""
LIMIT = MAX_POOLS * MAX_UNITS - KEPT
"""Units that are named while they are still there; others wait for their turn."""


@dataclass(frozen=True, slots=True)
class Account:
    """The figures of a unit that are summed into its run's."""

    restarts: int = 0
    lost: CostStatus | None = None
    """None before the first failure."""
    healing: OpenHeal | None = None
    """Not in `lost`."""


NOTHING = Account()


@dataclass(frozen=True, slots=True)
class Totals:
    """The summed figures of one run's units."""

    sum: Account
    departed: DepartedStatus | None
    doubtful: bool
    """The status had more than is found: a unit went while nobody looked, or what is known of the units is old."""


def account(unit: LearnerUnitStatus) -> Account:
    """What a unit has on its own."""
    return Account(unit.restart_count, unit.lost, heal.under_way(unit))


def closed(account: Account, now: float) -> Account:
    """Of a unit that is gone or is to go."""
    if account.healing is None:
        return account
    spent = account.healing.cost(now)
    return replace(account, lost=cost.with_heal(account.lost, account.healing.reason, spent), healing=None)


def totals(old: TrainingRunStatus, present: Mapping[str, Account], leaving: Collection[str]) -> Totals:
    """The totals now, and the status that keeps them.

    Args:
        present: accounts that are not empty, by uid: of units that exist, and of those that were seen to go.
        leaving: those of `present` that are gone or are to go; their accounts are closed.
    """
    known = cost.names(old.lost)
    before = old.departed or DepartedStatus()
    named = set(before.counted)
    still = [uid for uid in before.counted if uid in present]
    gone = [uid for uid in before.counted if uid not in present][-KEPT:]
    new = [uid for uid in leaving if uid not in named][: max(LIMIT - len(still), 0)]
    departed = _add([Account(before.restarts, before.lost), *(present[uid] for uid in new)], known)
    named |= set(new)
    staying = _add([account for uid, account in present.items() if uid not in named], known)
    missing = _beyond(Account(old.restarts, old.lost), _add([departed, staying], known))
    departed = _add([departed, missing], known)
    kept = DepartedStatus(restarts=departed.restarts, lost=departed.lost, counted=(*gone, *still, *new))
    return Totals(
        sum=_add([departed, staying], known),
        departed=kept if kept != DepartedStatus() else None,
        doubtful=missing != NOTHING,
    )


def carried(total: int, earlier: int, counted: int) -> int:
    """What processes had counted that have ended: the total may not fall when another begins from 0.

    Args:
        total: as last written.
        earlier: the result then.
        counted: by the processes of now.
    """
    return max(earlier, total - counted)


def _add(parts: Sequence[Account], known: Collection[str]) -> Account:
    costs = [part.lost for part in parts if part.lost is not None]
    return Account(sum(part.restarts for part in parts), cost.total(costs, known) if costs else None)


def _beyond(one: Account, other: Account) -> Account:
    lost = cost.beyond(one.lost, other.lost or CostStatus()) if one.lost is not None else CostStatus()
    return Account(max(one.restarts - other.restarts, 0), lost if lost != CostStatus() else None)

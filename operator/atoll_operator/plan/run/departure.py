"""Which units are to go: what they have on their accounts goes to the run's totals first, and then they go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.run.objects import RunObserved, UnitFacts
from atoll_operator.plan.run.rollout import of_another_kind
from atoll_operator.plan.run.totals import NOTHING, Totals, account, closed, totals


@dataclass(frozen=True, slots=True)
class Departure:
    """How the units of one run go."""

    totals: Totals
    retire: tuple[UnitFacts, ...]
    """Those that go now."""
    again: bool
    """Others can go once the status with these totals is written."""


def plan_departure(
    run: RunObserved, units: Mapping[str, UnitFacts], wanted: Mapping[str, LearnerUnitSpec] | None, now: float
) -> Departure:
    """Decides for one run.

    Args:
        units: those of the run, by name.
        wanted: specs by name; None in a run that is over, whose units stay.
    """
    departed = run.status.departed
    named = frozenset(departed.counted) if departed is not None else frozenset[str]()
    surplus = [] if wanted is None else _surplus(units, wanted, named)
    accounts = {unit.uid: account(unit.status) for unit in units.values() if unit.ours}
    present = {uid: each for uid, each in {**run.left, **accounts}.items() if each != NOTHING}
    leaving = [uid for uid in (*run.left, *(unit.uid for unit in surplus)) if uid in present]
    kept = totals(run.status, present | {uid: closed(present[uid], now) for uid in leaving}, leaving)
    return Departure(
        totals=kept,
        retire=tuple(unit for unit in surplus if unit.uid in named or unit.uid not in present),
        again=kept.departed is not None and not named.issuperset(kept.departed.counted),
    )


def _surplus(
    units: Mapping[str, UnitFacts], wanted: Mapping[str, LearnerUnitSpec], named: frozenset[str]
) -> list[UnitFacts]:
    """Units that are not wanted any more. One that the totals name already goes also if it is wanted again."""
    return [
        unit
        for name, unit in sorted(units.items())
        if unit.owned and (name not in wanted or of_another_kind(unit, wanted[name]) or unit.uid in named)
    ]

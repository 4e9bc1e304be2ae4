"""What failures cost, in time of chips and in steps that they would have made; and what became of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from atoll_operator.api.common import Cost, CostStatus, LedgerStatus
from atoll_runtime.contract import MOST_REASONS, OTHER, LedgerReport, UnitReport

_NAMES = tuple(Cost.model_fields)
_FIGURES = attrgetter(*_NAMES)


def of_heal(seconds: float, chips: int, step_seconds: float) -> Cost:
    """The cost of one heal of `seconds`; the unit's `step_seconds` are 0 if unknown."""
    seconds = round(seconds, 2)
    steps = round(seconds / step_seconds) if step_seconds > 0 else 0
    return Cost(failures=1, seconds=seconds, chip_seconds=round(seconds * chips, 2), steps=steps)


def with_heal(old: CostStatus | None, reason: str, heal: Cost) -> CostStatus:
    return total([old or CostStatus(), _status({reason: heal})])


def total(costs: Iterable[CostStatus]) -> CostStatus:
    """Sum of several costs. Reasons that find no free name are one: `Other`."""
    parts = dict[str, list[Cost]]()
    for cost in costs:
        for reason, part in cost.by_reason.items():
            free = reason in parts or len(parts.keys() - {OTHER}) < MOST_REASONS - 1
            parts.setdefault(reason if free else OTHER, []).append(part)
    return _status({reason: _sum(parts[reason]) for reason in sorted(parts)})


def _status(parts: Mapping[str, Cost]) -> CostStatus:
    kept = {reason: part for reason, part in parts.items() if part != Cost()}
    return CostStatus(**_sum(kept.values()).model_dump(), by_reason=kept)


def _sum(costs: Iterable[Cost]) -> Cost:
    sums = (round(sum(each), 2) for each in zip(*map(_FIGURES, costs), strict=True))
    return Cost.model_validate(dict(zip(_NAMES, sums, strict=False)))  # no sums of no costs


def shown_ledger(report: LedgerReport, fragments: int, unit: UnitReport | None = None) -> LedgerStatus:
    """The ledger for a status; `unit` is the report of the unit whose ledger it is."""
    waits = tuple(unit.waits) if unit is not None else ()
    return LedgerStatus(**report.model_dump(), fragments=fragments, waits=waits)

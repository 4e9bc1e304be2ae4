"""What failures cost (the time that chips stood still and the steps they would have made), and what became of tokens. A
`CostStatus` names at most `MOST_REASONS` reasons. In a sum over units, a reason that once had a name keeps it, and one
that found no free name stays in `Other`. So no part of the sum falls while its summands grow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from atoll_operator.api.common import Cost, CostStatus, LedgerStatus
from atoll_runtime.contract import MOST_REASONS, OTHER, LedgerReport, UnitReport


def of_heal(seconds: float, chips: int, step_seconds: float) -> Cost:
    """The cost of one heal of `seconds`; the unit's `step_seconds` are 0 if unknown."""
    seconds = round(seconds, 2)
    steps = round(seconds / step_seconds) if step_seconds > 0 else 0
    return Cost(failures=1, seconds=seconds, chip_seconds=round(seconds * chips, 2), steps=steps)


def with_heal(old: CostStatus | None, reason: str, heal: Cost) -> CostStatus:
    known = old or CostStatus()
    return total([known, _status({reason: heal})], names(known))


def names(cost: CostStatus | None) -> Collection[str]:
    return cost.by_reason.keys() - {OTHER} if cost is not None else ()


def total(costs: Iterable[CostStatus], known: Collection[str]) -> CostStatus:
    """Sum of several costs. The reasons in `known` keep their names; others get the free names in order."""
    named, parts = set(known), dict[str, list[Cost]]()
    for cost in costs:
        for reason, part in sorted(cost.by_reason.items()):
            if reason not in named and len(named) < MOST_REASONS - 1 and reason != OTHER:
                named.add(reason)
            parts.setdefault(reason if reason in named else OTHER, []).append(part)
    return _status({reason: _each(sum, *parts[reason]) for reason in sorted(parts)})


def carried(total: CostStatus, deleted: CostStatus, present: CostStatus) -> CostStatus:
    """Cost of deleted units: the part of `total` that `present` does not explain, and never less than `deleted`."""
    rest = dict[str, Cost]()
    for reason in total.by_reason:
        costs = (each.by_reason.get(reason, Cost()) for each in (total, deleted, present))
        rest[reason] = _each(lambda values: max(values[1], values[0] - values[2]), *costs)
    return _status(rest)


def _status(parts: Mapping[str, Cost]) -> CostStatus:
    kept = {reason: part for reason, part in parts.items() if part != Cost()}
    return CostStatus(**_each(sum, *kept.values()).model_dump(), by_reason=kept)


def _each(rule: Callable[[list[float]], float], *costs: Cost) -> Cost:
    fields = {name: [getattr(cost, name) for cost in costs] for name in Cost.model_fields}
    return Cost.model_validate({name: round(rule(values), 2) for name, values in fields.items()})


def shown_ledger(report: LedgerReport, fragments: int, unit: UnitReport | None = None) -> LedgerStatus:
    """The ledger for a status; `unit` is the report of the unit whose ledger it is."""
    waits = tuple(unit.waits) if unit is not None else ()
    return LedgerStatus(**report.model_dump(), fragments=fragments, waits=waits)

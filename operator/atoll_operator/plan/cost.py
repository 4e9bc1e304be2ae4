"""What failures cost: the time that chips stood still, and the steps that they would have made; in all and by reason.

A sum has at most `MAX_REASONS` parts. A reason that has a name keeps it, and one that found none free is `Other` for
good, so that no part of a sum falls when its summands grow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from atoll_operator.api.common import MAX_REASONS, Cost, CostStatus
from atoll_operator.plan.ledger import OTHER


def of_heal(seconds: float, chips: int, step_seconds: float) -> Cost:
    """One failure. `seconds`: from it to the end of the heal; `step_seconds`: of the unit, 0 if unknown."""
    seconds = round(seconds, 2)
    return Cost(
        failures=1,
        seconds=seconds,
        chip_seconds=round(seconds * chips, 2),
        steps=round(seconds / step_seconds) if step_seconds > 0 else 0,
    )


def with_heal(old: CostStatus | None, reason: str, heal: Cost) -> CostStatus:
    """One more failure."""
    known = old or CostStatus()
    return total([known, _sum_of({reason: heal})], names(known))


def names(cost: CostStatus | None) -> Collection[str]:
    """Reasons that have a name in it."""
    return cost.by_reason.keys() - {OTHER} if cost is not None else ()


def total(costs: Iterable[CostStatus], known: Collection[str]) -> CostStatus:
    """The sum.

    Args:
        known: reasons that have names of their own already; others get what is left, as they come.
    """
    named, parts = set(known), dict[str, list[Cost]]()
    for cost in costs:
        for reason, part in sorted(_parts(cost).items()):
            if reason not in named and len(named) < MAX_REASONS - 1 and reason != OTHER:
                named.add(reason)
            parts.setdefault(reason if reason in named else OTHER, []).append(part)
    return _sum_of({reason: _sum(parts[reason]) for reason in sorted(parts)})


def beyond(cost: CostStatus, known: CostStatus) -> CostStatus:
    """What the first has more of than the second, reason by reason, nowhere less than nothing."""
    there, nothing = _parts(known), Cost()
    parts = {reason: _beyond(part, there.get(reason, nothing)) for reason, part in _parts(cost).items()}
    return _sum_of({reason: part for reason, part in parts.items() if part != nothing})


def _parts(cost: CostStatus) -> Mapping[str, Cost]:
    """By reason; what an operator counted that knew no reasons is of `Other`."""
    if cost.failures == sum(part.failures for part in cost.by_reason.values()):
        return cost.by_reason
    rest = _beyond(cost, _sum(cost.by_reason.values()))
    return {**cost.by_reason, OTHER: _sum([cost.by_reason.get(OTHER, Cost()), rest])}


def _sum_of(parts: Mapping[str, Cost]) -> CostStatus:
    whole = _sum(parts.values())
    return CostStatus(**whole.model_dump(), by_reason=dict(parts))


def _sum(parts: Iterable[Cost]) -> Cost:
    summed = list(parts)
    if len(summed) == 1:
        return summed[0]
    return Cost(
        failures=sum(part.failures for part in summed),
        seconds=round(sum(part.seconds for part in summed), 2),
        chip_seconds=round(sum(part.chip_seconds for part in summed), 2),
        steps=sum(part.steps for part in summed),
    )


def _beyond(cost: Cost, known: Cost) -> Cost:
    return Cost(
        failures=max(cost.failures - known.failures, 0),
        seconds=round(max(cost.seconds - known.seconds, 0.0), 2),
        chip_seconds=round(max(cost.chip_seconds - known.chip_seconds, 0.0), 2),
        steps=max(cost.steps - known.steps, 0),
    )

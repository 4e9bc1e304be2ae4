"""What failures cost: the time that chips stood still, and the steps that they would have made."""

from __future__ import annotations

from collections.abc import Iterable

from atoll_operator.api.common import CostStatus


def with_heal(old: CostStatus | None, seconds: float, chips: int, step_seconds: float) -> CostStatus:
    """One more failure. `seconds`: from it to the first merge after it; `step_seconds`: of the unit, 0 if unknown."""
    heal = CostStatus(
        failures=1,
        seconds=seconds,
        chip_seconds=seconds * chips,
        steps=round(seconds / step_seconds) if step_seconds > 0 else 0,
    )
    return total([heal] if old is None else [old, heal])


def beyond(cost: CostStatus, known: CostStatus) -> CostStatus:
    """What the first has more of than the second, nowhere less than nothing."""
    return CostStatus(
        failures=max(cost.failures - known.failures, 0),
        seconds=round(max(cost.seconds - known.seconds, 0.0), 2),
        chip_seconds=round(max(cost.chip_seconds - known.chip_seconds, 0.0), 2),
        steps=max(cost.steps - known.steps, 0),
    )


def total(costs: Iterable[CostStatus]) -> CostStatus:
    """The sum."""
    parts = list(costs)
    return CostStatus(
        failures=sum(part.failures for part in parts),
        seconds=round(sum(part.seconds for part in parts), 2),
        chip_seconds=round(sum(part.chip_seconds for part in parts), 2),
        steps=sum(part.steps for part in parts),
    )

"""What a run costs at the prices that the user gives; there are no others."""

from __future__ import annotations

from collections.abc import Mapping

from atoll_runtime.simulate.planner.run import Run

HOUR = 3600.0


def cost(run: Run, prices: Mapping[str, float], seconds: float) -> float:
    """Dollars of every rented chip, whether it trains or heals, from dollars a chip-hour by generation.

    Raises:
        KeyError: a generation of this run has no price.
    """
    return sum(pool.all_chips * prices[pool.generation] for pool in run.pools) * seconds / HOUR

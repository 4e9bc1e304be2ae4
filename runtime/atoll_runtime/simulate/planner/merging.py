"""Which share of the trained tokens a run's merges take."""

from __future__ import annotations

from atoll_runtime.simulate.fleet import merging
from atoll_runtime.simulate.planner.run import Run
from atoll_runtime.sync.rules import Rules


def merged_share(run: Run, step_seconds: tuple[float, ...]) -> float:
    """0…1, of the tokens that have a fate; `step_seconds` by pool."""
    return merging.merged_share(
        [seconds for pool, seconds in zip(run.pools, step_seconds, strict=True) for _ in range(pool.units)],
        Rules(
            fragments=run.fragments,
            interval=run.interval,
            overlap=run.overlap,
            quorum=run.quorum,
            grace_fraction=run.grace_fraction,
            grace_steps=run.grace_steps,
            target_steps=None,
            target_tokens=None,
        ),
    )

"""Generated specs, the same on every machine that loads the same modules. SEED in the environment draws others."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from specs import broken, runs, units

SEED = int(os.environ.get("SEED") or 20261122)
COUNT = int(os.environ.get("SPECS") or 2000)
PARTS = {
    "runs": (runs(small=True), COUNT // 8, SEED),
    "units": (units(), COUNT // 8, SEED),
    "broken runs": (broken(runs(small=True)), COUNT // 4, SEED),
    "other broken runs": (broken(runs(small=True)), COUNT // 4, SEED + 1),
    "broken units": (broken(units()), COUNT // 4, SEED),
}
"""What is drawn, how many of it, and by which seed."""


def drawn(part: str, share: int = 1) -> list[dict[str, Any]]:
    """Bodies of a part, or the first ones of a smaller share of it."""
    strategy, count, own_seed = PARTS[part]
    bodies: list[dict[str, Any]] = []

    @seed(own_seed)
    @settings(
        max_examples=count // share,
        phases=[Phase.generate],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(body: dict[str, Any]) -> None:
        bodies.append(body)

    collect()
    return bodies

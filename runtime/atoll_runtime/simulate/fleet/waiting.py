"""Synchronous learners, which are not ours: they wait for merges, and pay for the slowest (arXiv 2604.21428, §4.4)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll_runtime.simulate.fleet.speeds import Drift
from atoll_runtime.simulate.shard import COSTS


def waiting_goodput(drifts: Sequence[Drift], steps: int, ahead: int) -> float:
    """Share of the learners' time in inner steps, where a merge of step t takes in every learner's step t.

    Args:
        ahead: steps that a learner makes at most beyond the newest merge it has taken.
    """
    exchange = COSTS.push + COSTS.merge + COSTS.write + COSTS.fetch
    ended_M, busy = np.zeros(len(drifts)), 0.0
    merged = [0.0] * (steps + 1)
    """When each step's merge is with the learners."""
    for step in range(1, steps + 1):
        seconds_M = np.array([drift.next() for drift in drifts])
        ended_M = np.maximum(ended_M, merged[max(0, step - ahead)]) + seconds_M
        merged[step] = float(ended_M.max()) + exchange
        busy += float(seconds_M.sum())
    return busy / (len(drifts) * float(ended_M.max()))

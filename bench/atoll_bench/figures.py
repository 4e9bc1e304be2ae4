"""Medians and quartiles of samples, and figures as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return float(median), float(low), float(high)


def line(figure: str, values: Mapping[str, object]) -> str:
    """`{"figure": …}` on one line; floats to six digits. Without a name, the values alone."""
    return json.dumps(
        ({"figure": figure} if figure else {}) | {name: _short(value) for name, value in values.items()}
    )


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    return value

"""Medians and quartiles of samples, and figures as JSON lines and in tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from atoll_cli.text import amount

LARGE = 10_000


def spread(samples: Sequence[float]) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return float(median), float(low), float(high)


def line(figure: str, values: Mapping[str, object]) -> str:
    """`{"figure": …}` on one line; floats to six digits. Without a name, the values alone."""
    return json.dumps(
        ({"figure": figure} if figure else {}) | {name: _short(value) for name, value in values.items()}
    )


def cell(value: object) -> str:
    """For people: four digits, and prefixes of large numbers; `-` for nothing."""
    if isinstance(value, list | tuple):
        return " ".join(map(cell, value))
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int | float) and abs(value) >= LARGE:
        return amount(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list | tuple):
        return [_short(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    return value

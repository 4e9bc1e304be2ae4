"""Medians and quartiles of samples, figures as JSON, and progress."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np


def spread(samples: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Median, lower and upper quartile."""
    low, median, high = np.percentile(samples, [25, 50, 75])
    return float(median), float(low), float(high)


def say(text: str) -> None:
    """Prints progress, beside the figures."""
    print(text, file=sys.stderr, flush=True)


def document(name: str, figure: Any) -> dict[str, Any]:
    """Returns a dataclass as JSON types, with floats to six digits, and with `"figure": name` if `name` is not empty.
    Returns a dictionary unchanged."""
    if isinstance(figure, dict):
        return figure
    return ({"figure": name} if name else {}) | {key: _short(value) for key, value in asdict(figure).items()}


def _short(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value

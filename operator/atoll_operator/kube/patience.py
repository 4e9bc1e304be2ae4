"""How long the API server asks to be left alone: `Retry-After`."""

from __future__ import annotations

from collections.abc import Mapping


def patience(headers: Mapping[str, str], longest: float) -> float:
    """Seconds, `longest` at most; 0 where an answer names none, or a date, which the API server never does."""
    after = headers.get("Retry-After", "")
    return min(float(after), longest) if after.isdecimal() else 0.0

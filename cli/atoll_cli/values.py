"""Parses option values. An error names the option, the value and what is expected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from atoll_cli.errors import UsageError

UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0, "y": 31_557_600.0}
BOUNDLESS = 1e15
"""Messages omit an upper limit of this value or more."""
PREFIXES = {"k": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}


def count(option: str, text: str, least: int = 1, most: int = 10**12) -> int:
    """A whole number such as `8`, `150k`, `1.2M`."""
    value = _scaled(text)
    if value is None or not math.isfinite(value) or value != int(value) or not least <= value <= most:
        raise UsageError(f"{option} {text!r}: a whole number from {least} to {most} is wanted")
    return int(value)


def number(option: str, text: str, least: float = 0.0, most: float = 1e18, *, above: bool = False) -> float:
    """A number such as `0.95`, `5B`. With `above`, `least` itself is too small."""
    value = _scaled(text)
    if value is None or not math.isfinite(value) or not least <= value <= most or (above and value == least):
        low, high = _digits(least), _digits(most)
        range_ = f"above {low} and at most {high}" if above else f"from {low} to {high}"
        if most >= BOUNDLESS:
            range_ = f"above {low}" if above else f"of {low} or more"
        raise UsageError(f"{option} {text!r}: a number {range_} is wanted")
    return value


def seconds(option: str, text: str, most: float = 1e12) -> float:
    """A time above 0 such as `90s`, `15m`, `12h`, `7d`, `1y`; a bare number is seconds."""
    body, unit = (text[:-1], UNITS[text[-1]]) if text[-1:] in UNITS else (text, 1.0)
    try:
        value = float(body) * unit
    except ValueError:
        value = math.nan
    if not 0 < value <= most:
        raise UsageError(f"{option} {text!r}: a time above 0 is wanted, such as 90s, 15m, 12h, 7d or 1y")
    return value


def choice(option: str, text: str, choices: Sequence[str]) -> str:
    """One of a few words."""
    if text not in choices:
        raise UsageError(f"{option} {text!r}: one of {', '.join(choices)} is wanted")
    return text


def numbers(
    option: str, text: str, least: float = 0.0, most: float = 1e18, *, above: bool = False
) -> list[float]:
    """From 1 to 4096 numbers, separated by commas."""
    parts = text.split(",")
    if len(parts) > 4096:
        raise UsageError(f"{option}: {len(parts)} values; at most 4096 are taken")
    return [number(option, part.strip(), least, most, above=above) for part in parts]


def bucket_uri(argument: str, text: str) -> str:
    """`gs://bucket/…` or `file:///absolute/path`; raises `UsageError`."""
    wanted = "gs://bucket/path or file:///absolute/path is wanted"
    scheme, separator, rest = text.partition("://")
    if not separator:
        hint = f", such as file://{Path(text).absolute()}" if text.strip() else ""
        raise UsageError(f"{argument} {text!r}: {wanted}{hint}")
    if scheme == "file" and not rest.startswith("/"):
        raise UsageError(f"{argument} {text!r}: file:///absolute/path is wanted, with three slashes")
    if scheme not in ("gs", "file") or not rest.strip("/"):
        raise UsageError(f"{argument} {text!r}: {wanted}")
    return text


def _digits(value: float) -> str:
    """A number without an exponent."""
    return str(int(value)) if value == int(value) else f"{value:g}"


def _scaled(text: str) -> float | None:
    body, scale = (text[:-1], PREFIXES[text[-1]]) if text[-1:] in PREFIXES else (text, 1.0)
    try:
        return float(body) * scale
    except ValueError:
        return None

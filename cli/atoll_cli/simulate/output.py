"""Prints an answer as a table or as JSON. `FORMS` says how figures are formatted."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atoll_cli.text import amount, table

DAYS_OF_NEVER = 36_525
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Report:
    """An answer. All rows have the same keys; their values go into JSON as they are."""

    title: str
    columns: tuple[str, ...]
    """Keys of the rows that the table shows."""
    rows: tuple[Row, ...]
    above: tuple[str, ...] = ()
    """Lines, or whole tables, between title and table."""
    notes: tuple[str, ...] = ()
    """Lines below the table: constants, mean errors, what was assumed."""
    document: Row | None = None
    """The object to print as JSON instead of the rows."""


def finite(value: float) -> float | None:
    """Return None for infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def percent(value: float) -> str:
    """`98.03 %`."""
    return f"{100 * value:.2f} %"


def duration(value: float) -> str:
    """`12 ms`, `0.62 s`, `12.5 min`, `3.4 h`, `12.0 d`."""
    if value > DAYS_OF_NEVER * 86_400.0:
        return "never"
    for size, unit in ((86_400.0, "d"), (3600.0, "h"), (60.0, "min")):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{1000 * value:.3g} ms" if value < 0.1 else f"{value:.3g} s"


def _digits(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"


FORMS: Mapping[str, Callable[[float], str]] = {
    "hours": _digits,
    **dict.fromkeys(("goodput", "uptime", "below", "share", "utilization", "interval", "live"), percent),
    **dict.fromkeys(("flight", "discarded"), percent),
    **dict.fromkeys(("seconds", "mtbi"), duration),
    **dict.fromkeys(("bytes", "memory", "volume"), lambda value: amount(value, "B")),
    "params": amount,
    "cost": "${:,.2f}".format,
}
"""How to format a number, by a word of its key. The first word with a format decides."""


def words(key: str) -> str:
    """Return a key as words."""
    return key.replace("_", " ")


def show(key: str, value: Any, form: Callable[[float], str] | None = None) -> str:
    """Format a JSON value for the terminal. A value in an object uses the format of the object's key, or its own."""
    form = form or next((FORMS[word] for word in key.split("_") if word in FORMS), None)
    if value is None:
        return "never" if form is duration else "none" if key == "need_gbps" else "-"
    if isinstance(value, bool):
        return "*" if value else ""
    if isinstance(value, float):
        return (form or _digits)(value)
    if isinstance(value, int):
        return FORMS["bytes"](value) if form is FORMS["bytes"] else f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{words(name)} {show(name, each, form)}" for name, each in value.items()) or "none"
    if isinstance(value, Sequence) and not isinstance(value, str):
        between = ", " if any(isinstance(each, str) for each in value) else " to "
        return between.join(show(key, each, form) for each in value) or "none"
    return str(value)


def grid(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return a table of these keys of the rows."""
    return table(
        [words(key).upper() for key in columns], [[show(key, row[key]) for key in columns] for row in rows]
    )


def deliver(report: Report, *, as_json: bool) -> None:
    """Prints the table, or JSON."""
    if as_json:
        for row in report.rows if report.document is None else (report.document,):
            sys.stdout.write(json.dumps(row, allow_nan=False) + "\n")
        return
    print("\n".join((report.title, *report.above, grid(report.rows, report.columns), *report.notes)))

"""Convert Unix seconds to and from the API's time format."""

from __future__ import annotations

import datetime


def format_time(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, because a heal may take less than a second."""
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def earliest(*moments: float | None) -> float | None:
    """The earliest of the given times; None if there is none."""
    return min((moment for moment in moments if moment is not None), default=None)

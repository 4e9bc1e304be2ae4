"""Objects as users name them: `NAME` or `trun/NAME`."""

from __future__ import annotations

from atoll_cli.errors import UsageError

RUN = "trainingrun"
UNIT = "learnerunit"
PREFIXES = {
    RUN: ("trun", "trainingrun", "trainingruns", "trainingruns.atoll.dev", "trainingrun.atoll.dev"),
    UNIT: ("lu", "learnerunit", "learnerunits", "learnerunits.atoll.dev", "learnerunit.atoll.dev"),
}


def named(kind: str, text: str) -> str:
    """The name alone. Raises `UsageError` if it is of another kind."""
    prefix, slash, name = text.rpartition("/")
    if slash and prefix not in PREFIXES[kind]:
        raise UsageError(f"{text!r}: NAME or {PREFIXES[kind][0]}/NAME is wanted")
    return name

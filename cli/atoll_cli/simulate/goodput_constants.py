"""What an answer about goodput rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from atoll_runtime.simulate.fleet.goodput import Case


def constants(case: Case) -> dict[str, Any]:
    """All that an answer rests on, beside the question's own values; times in seconds."""
    own = ("chips", "learners", "mtbi_seconds")
    fleet = {name: value for name, value in asdict(case.fleet).items() if name not in own}
    heal = (
        {f"heal_{name}": value for name, value in asdict(case.heal).items()} if case.method == "unit" else {}
    )
    return {**fleet, **asdict(case.recovery), **heal}


def in_words(used: Mapping[str, Any]) -> str:
    """Constants in one line."""
    shown = {
        name: "/".join(f"{each:g}" for each in (value if isinstance(value, tuple) else (value,)))
        for name, value in used.items()
        if value is not None
    }
    return ", ".join(f"{name} {value}" for name, value in shown.items())

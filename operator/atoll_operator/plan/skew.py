"""`VersionSkew`: an object has parts that this version does not know. The condition is there while that is so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atoll_operator.plan.conditions import Notice, State, state

VERSION_SKEW = "VersionSkew"


def skewed(unknown: Mapping[str, object]) -> dict[str, State]:
    """The condition for these values, by their paths; nothing if there are none."""
    parts = ", ".join(f"{path}: {value!r:.100}" for path, value in unknown.items())
    then = "goes on without; upgrade the operator to the version of the CRDs, or remove these fields"
    text = f"this operator does not know {parts}, and {then}"
    return {VERSION_SKEW: state(True, "UnknownFields", text)} if unknown else {}


def skew_notices(unknown: Mapping[str, object], generation: int) -> Iterator[Notice]:
    for name, (_, _, text) in skewed(unknown).items():
        yield Notice("Warning", name, text, f"{generation}")

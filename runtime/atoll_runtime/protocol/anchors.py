"""Against which versions of a fragment a contribution counts. `history`: known versions, oldest first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def unusable(
    anchor: int, step: int, history: Sequence[int], latest: int | None, oldest: int, refused: int, met: int
) -> str:
    """Why a contribution to the round of `step` with this anchor does not count; empty when it does.

    Args:
        latest: the version that holds this incarnation's newest merged contribution; None where none was merged.
        oldest: steps. An anchor of more is too old, unless nothing newer was merged.
        refused: the newest version against which a contribution of this incarnation was refused; -1 where none was.
        met: the version that was current when the incarnation joined; only where `latest` is None.
    """
    current = history[-1]
    if anchor not in history:
        return f"anchor {anchor} is not a known version (current: {current})"
    if latest is None and anchor < met:
        return f"a new incarnation counts from version {met}, which was current when it joined, not from {anchor}"
    if latest is not None and anchor < latest:
        return f"the work since version {anchor} was merged already"
    if anchor != current and anchor <= refused:
        return f"the work since version {anchor} was refused, and {current} is newer"
    if anchor != current and step - anchor > oldest:
        return f"anchor {anchor} is {step - anchor} steps old, more than {oldest}"
    return ""


def least(step: int, history: Sequence[int], *limits: Any) -> int:
    """The oldest usable anchor; the next version to come when there is none. `limits`: see `unusable`."""
    usable = (anchor for anchor in history if not unusable(anchor, step, history, *limits))
    return min(usable, default=history[-1] + 1)

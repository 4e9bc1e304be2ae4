"""Against which versions of a fragment a contribution counts. `history`: known versions, oldest first."""

from __future__ import annotations

from collections.abc import Sequence


def unusable(anchor: int, step: int, history: Sequence[int], spent: int | None, interval: int) -> str:
    """Why a contribution to the round of `step` with this anchor does not count; empty when it does.

    Args:
        spent: anchor of this incarnation's last merged contribution; None for one that has none yet.
        interval: H. Older than 2·H is too old, unless nothing newer was merged.
    """
    current = history[-1]
    if anchor not in history:
        return f"anchor {anchor} is not a known version (current: {current})"
    if spent is None and anchor != current:
        return f"a new incarnation counts from the current version {current}, not from {anchor}"
    if spent is not None and anchor <= spent:
        return f"the work since version {anchor} was merged already"
    if anchor != current and step - anchor > 2 * interval:
        return f"anchor {anchor} is {step - anchor} steps old, more than 2·H"
    return ""


def least(step: int, history: Sequence[int], spent: int | None, interval: int) -> int:
    """The oldest usable anchor; the next version to come when there is none."""
    usable = (anchor for anchor in history if not unusable(anchor, step, history, spent, interval))
    return min(usable, default=history[-1] + 1)

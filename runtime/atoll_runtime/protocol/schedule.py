"""Which fragment is due at which global step."""

from __future__ import annotations


def offset(p: int, fragments: int, interval: int) -> int:
    """Fragment `p` is due at steps t with t mod H = floor(p·H/P)."""
    return p * interval // fragments


def newest(step: int, p: int, fragments: int, interval: int) -> int:
    """The last step up to `step` at which fragment `p` was due; 0 if there is none."""
    return max(0, step - (step - offset(p, fragments, interval)) % interval)


def due(step: int, fragments: int, interval: int) -> int | None:
    """The fragment due at `step`, if any. There is at most one because P ≤ H. Step 0 is the initial model."""
    if step < 1:
        return None
    phase = step % interval
    p = -(-phase * fragments // interval)  # no other p can have the offset `phase`
    return p if p < fragments and offset(p, fragments, interval) == phase else None

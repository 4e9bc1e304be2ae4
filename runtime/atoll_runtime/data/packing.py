"""Which tokens of an example are of one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def segments(tokens: Any, separator: int) -> Any:
    """Documents int32 [B, T+1] of tokens [B, T+1], counted 1, 2, … along each row; NumPy or JAX, as `tokens` is.

    A separator belongs to the document that it ends. The loss then leaves out the first token of the next one, for
    what stands before it says nothing of it; a row that begins within a document goes on with it as document 1.
    """
    xp = tokens.__array_namespace__()
    ends = xp.astype(tokens[:, :-1] == separator, xp.int32)
    return xp.concat([xp.ones_like(ends[:, :1]), 1 + xp.cumulative_sum(ends, axis=1, dtype=xp.int32)], axis=1)


def counted(batch: Mapping[str, Any]) -> Any:
    """What each target counts, float32 [B, T]: its weight, and nothing where another document begins or in padding."""
    weights = batch["weights"]
    if "segments" not in batch:
        return weights
    own, following = batch["segments"][:, :-1], batch["segments"][:, 1:]
    return weights * ((own == following) & (own > 0))

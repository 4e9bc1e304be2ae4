"""Finds which tokens of an example belong to one document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def segments(tokens: Any, separator: int) -> Any:
    """Document numbers int32 [B, T+1] of tokens [B, T+1]: 1, 2, … along each row, in NumPy or JAX as `tokens` is.

    A separator belongs to the document that it ends. So the loss leaves out the first token of each next document,
    which the tokens before it do not predict. A row that begins inside a document counts the rest as document 1.
    """
    xp = tokens.__array_namespace__()
    ends = xp.astype(tokens[:, :-1] == separator, xp.int32)
    return xp.concat([xp.ones_like(ends[:, :1]), 1 + xp.cumulative_sum(ends, axis=1, dtype=xp.int32)], axis=1)


def counted(batch: Mapping[str, Any]) -> Any:
    """The weight of each target, float32 [B, T]. It is 0 where another document begins, and in padding."""
    weights = batch["weights"]
    if "segments" not in batch:
        return weights
    own, following = batch["segments"][:, :-1], batch["segments"][:, 1:]
    return weights * ((own == following) & (own > 0))

"""From the units' outer gradients to one: radial-directional averaging (RDA), or the mean (numpy, float32).

Sums run in the order of the inputs, which the caller sorts by unit name: a merge can be replayed bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll_runtime.sync.fragments import Array, Fragment

BLOCK = 1 << 16
"""Elements: a block of Θ, momentum and a few inputs stays in the cache."""
CANCELLED = 1e-6
"""Directions whose mean is shorter than this cancel; the direct mean is taken instead."""


class MergeError(ValueError):
    """The inputs have no meaningful mean."""


@dataclass(frozen=True)
class Input:
    """One unit's outer gradient Δ = anchor − θ, float32 [size]."""

    weight: float
    delta: Array


def merge(fragment: Fragment, inputs: Sequence[Input], rule: Literal["RDA", "Mean"]) -> Array:
    """The merged outer gradient of `fragment`, float32 [size].

    Raises:
        MergeError: no weight at all, or a result that is not finite.
    """
    total = math.fsum(each.weight for each in inputs)
    if not total > 0 or not math.isfinite(total):
        raise MergeError(f"the weights sum to {total}: nothing to merge")
    shares = [each.weight / total for each in inputs]
    merged = np.empty(fragment.size, np.float32)
    with np.errstate(all="ignore"):  # the result is checked as a whole
        for piece, start in zip(fragment.pieces, fragment.offsets, strict=True):
            stop = start + piece.size
            vectors = [each.delta[start:stop] for each in inputs]
            factors = shares if rule == "Mean" or piece.embedding else radial(vectors, shares)
            combine(vectors, factors, merged[start:stop])
        length = norm(merged)
    if not math.isfinite(length):
        raise MergeError("the merged outer gradient is not finite")
    return merged


def radial(vectors: Sequence[Array], shares: Sequence[float]) -> list[float]:
    """Factors f with RDA = Σ f·v: (Σ w‖v‖) · φ(Σ w·φ(v)), φ(x) = x/‖x‖, w summing to 1."""
    norms = [norm(vector) for vector in vectors]
    directed = [share / length if length > 0 else 0.0 for share, length in zip(shares, norms, strict=True)]
    direction = math.sqrt(sum_squares(vectors, directed))
    if not direction > CANCELLED:
        return list(shares)
    radius = math.fsum(share * length for share, length in zip(shares, norms, strict=True))
    return [radius * factor / direction for factor in directed]


def combine(vectors: Sequence[Array], factors: Sequence[float], out: Array) -> None:
    """out ← Σ f·v, a block at a time, in the order given."""
    scratch = np.empty(min(BLOCK, out.size), np.float32)
    for start in range(0, out.size, BLOCK):
        target = out[start : start + BLOCK]
        target[:] = 0
        for vector, factor in zip(vectors, factors, strict=True):
            product = scratch[: target.size]
            np.multiply(vector[start : start + BLOCK], np.float32(factor), out=product)
            target += product


def norm(vector: Array) -> float:
    """Euclidean norm; blocks are float32, their sum is a Python float."""
    return math.sqrt(sum_squares([vector], [1.0]))


def sum_squares(vectors: Sequence[Array], factors: Sequence[float]) -> float:
    """‖Σ f·v‖² without a vector of full length."""
    size = vectors[0].size
    scratch = np.empty(min(BLOCK, size), np.float32)
    product = np.empty_like(scratch)
    total = 0.0
    for start in range(0, size, BLOCK):
        width = min(BLOCK, size - start)
        block = scratch[:width]
        block[:] = 0
        for vector, factor in zip(vectors, factors, strict=True):
            np.multiply(vector[start : start + width], np.float32(factor), out=product[:width])
            block += product[:width]
        total += float(np.dot(block, block))
    return total

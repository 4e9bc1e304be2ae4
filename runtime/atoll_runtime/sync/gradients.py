"""Outer gradients as they came over the wire: what is known of them on arrival, and how the merge reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.sync import kernels
from atoll_runtime.sync.fragments import Fragment

Codec = Literal["bf16", "float32", "int4"]
WIRE: dict[Codec, np.dtype[Any]] = {
    "bf16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "int4": np.dtype(np.uint16),
}
"""Elements as they are merged and fetched, little-endian; bfloat16 as its bits. What is pushed in int4 is bfloat16 from
its arrival on."""


class PartsError(ValueError):
    """Parts that are not the whole fragment."""


@dataclass(frozen=True)
class Scan:
    """What is known of a part from reading it once, when it arrives."""

    finite: bool
    squares: tuple[float, ...]
    """Σ v² of what the part holds of each of the fragment's pieces, float64."""


@dataclass(frozen=True)
class Part:
    """One host's share of a unit's outer gradient Δ = anchor − θ, as it was sent."""

    start: int
    """Its first element in the fragment. What lies beyond the fragment's end is padding."""
    body: bytearray | memoryview
    scan: Scan


@dataclass(frozen=True)
class Gradient:
    """One unit's outer gradient: parts that together are the fragment."""

    weight: float
    parts: tuple[Part, ...]


def scan(fragment: Fragment, body: bytearray | memoryview, codec: Codec, start: int) -> Scan:
    """Reads a part, once. Its sums depend on nothing but its elements and where they start and stop."""
    values = np.frombuffer(body, WIRE[codec])
    found = []
    for piece, first in zip(fragment.pieces, fragment.offsets, strict=True):
        low, high = max(first - start, 0), min(first + piece.size - start, values.size)
        found.append(float(kernels.squares(values[low:high])) if low < high else 0.0)
    return Scan(all(math.isfinite(each) for each in found), tuple(found))


@dataclass(frozen=True)
class Inputs:
    """All units' parts of a fragment, in the order given, as the kernel reads them."""

    arrays: list[NDArray[Any]]
    """Keeps the memory alive that the addresses point to."""
    bounds: tuple[int, ...]
    """Where segments start, and the last one ends. Within one each input is a single part."""
    addresses: NDArray[np.int64]
    """[segments, M]: of the fragment's element 0, if that part held it too."""
    like: NDArray[Any]
    norms: list[list[float]]
    """By piece, then input."""

    @classmethod
    def of(cls, fragment: Fragment, gradients: Sequence[Gradient], codec: Codec) -> Inputs:
        """Raises `PartsError`: an input is not whole."""
        arrays: list[NDArray[Any]] = []
        tables = [_table(fragment, each, codec, arrays) for each in gradients]
        bounds = tuple(sorted({start for table in tables for start, _, _ in table} | {fragment.size}))
        addresses = [
            [next(at for start, stop, at in table if start <= low < stop) for table in tables]
            for low, _ in pairwise(bounds)
        ]
        norms = [
            [math.sqrt(math.fsum(part.scan.squares[p] for part in each.parts)) for each in gradients]
            for p in range(len(fragment.pieces))
        ]
        found = np.array(addresses, np.int64).reshape(len(addresses), len(tables))
        return cls(arrays, bounds, found, np.empty(0, WIRE[codec]), norms)


def _table(
    fragment: Fragment, gradient: Gradient, codec: Codec, arrays: list[NDArray[Any]]
) -> list[tuple[int, int, int]]:
    """(start, stop, address of the fragment's element 0) of each part; its memory is added to `arrays`."""
    table, reached = [], 0
    for part in sorted(gradient.parts, key=lambda part: part.start):
        values = np.frombuffer(part.body, WIRE[codec])
        if part.start < fragment.size:
            if part.start != reached:
                raise PartsError(f"parts: one starts at {part.start}, where {reached} is wanted")
            reached = min(part.start + values.size, fragment.size)
            arrays.append(values)
            address = values.__array_interface__["data"][0]  # `values.ctypes` takes longer
            table.append((part.start, reached, address - part.start * values.itemsize))
    if reached != fragment.size:
        raise PartsError(f"parts: they stop at {reached}, and the fragment at {fragment.size}")
    return table

"""Outer gradients of units, as they came over the network."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.contract import Codec
from atoll_runtime.merge import kernels
from atoll_runtime.payloads import HostPart, MergeError, Scan
from atoll_runtime.protocol.fragments import Fragment

BITS: dict[Codec, np.dtype[Any]] = {
    "float32": np.dtype(np.uint32),
    "bf16": np.dtype(np.uint16),
    "int8": np.dtype(np.uint16),
    "int4": np.dtype(np.uint16),
}
"""Bits of an element as it is merged, by the run's codec. Contributions in another codec are decoded on arrival."""


@dataclass(frozen=True)
class Gradient:
    """One unit's outer gradient, in parts that together make the whole fragment."""

    weight: float
    parts: tuple[HostPart, ...]
    divisor: int = 1
    """The gradient is divided by this, because a merge moves Θ by the work of one interval."""

    def norms(self, pieces: int) -> list[float]:
        """Norm of each piece of the divided gradient."""
        squares = (math.fsum(part.scan.squares[p] for part in self.parts) for p in range(pieces))
        return [math.sqrt(each) / self.divisor for each in squares]


def scan(fragment: Fragment, body: bytearray | memoryview, codec: Codec, start: int) -> Scan:
    """Reads a part, once on arrival. The sums depend only on its elements and on where it starts and stops."""
    bits = np.frombuffer(body, BITS[codec])
    sums = []
    for piece, first in zip(fragment.pieces, fragment.offsets, strict=True):
        low, high = max(first - start, 0), min(first + piece.size - start, bits.size)
        sums.append(float(kernels.squares(bits[low:high])) if low < high else 0.0)
    return Scan(all(math.isfinite(each) for each in sums), tuple(sums))


class Input:
    """One unit's outer gradient as the bits of its elements, in the order of the fragment."""

    def __init__(self, fragment: Fragment, gradient: Gradient, codec: Codec) -> None:
        """Raises `MergeError` if the parts are not the whole fragment."""
        parts = sorted(gradient.parts, key=lambda part: part.start)
        self._bits = [np.frombuffer(part.body, BITS[codec]) for part in parts if part.start < fragment.size]
        self.starts = [part.start for part in parts if part.start < fragment.size]
        reached = 0
        for start, bits in zip(self.starts, self._bits, strict=True):
            if start != reached:
                raise MergeError(f"parts: one starts at {start}, where {reached} is wanted")
            reached = min(start + bits.size, fragment.size)
        if reached != fragment.size:
            raise MergeError(f"parts: they stop at {reached}, and the fragment at {fragment.size}")

    def bits(self, low: int, high: int) -> NDArray[Any]:
        """Elements from `low` to `high`, which must be in one part."""
        i = bisect_right(self.starts, low) - 1
        return self._bits[i][low - self.starts[i] : high - self.starts[i]]


def cuts(inputs: Sequence[Input], low: int, high: int, longest: int) -> list[tuple[int, int]]:
    """Splits `low` to `high` into ranges of at most `longest` elements, equal ones so that threads end together. In
    each range every input has one part."""
    ends = sorted({start for each in inputs for start in each.starts if low < start < high} | {high})
    ranges = []
    for end in ends:
        for left in range(-(-(end - low) // longest), 0, -1):
            size = -(-(end - low) // left)
            ranges.append((low, low + size))
            low += size
    return ranges

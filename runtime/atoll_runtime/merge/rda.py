"""From the units' outer gradients to the next version: radial-directional averaging (RDA) or the mean, then Nesterov.

All is computed in float32, and norms in float64. Inputs are added in the given order, which the caller sorts by unit
name, and sums are split at fixed places. So the result is the same bit for bit for any number of threads.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from threading import Event

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.contract import Codec, MergeRule
from atoll_runtime.merge import kernels
from atoll_runtime.merge.buffers import Buffers
from atoll_runtime.merge.gradients import BITS, Gradient, Input, cuts, scan
from atoll_runtime.payloads import HostPart, MergeError
from atoll_runtime.protocol.clipping import clipped, factors
from atoll_runtime.protocol.fragments import Array, Fragment, Piece

COMBINE_SECONDS = 600.0
RANGE = 1 << 19
"""Most elements that a thread computes at a time. With fewer, the overhead of Python shows. Sums are split there."""
SCRATCH = 4
"""Ranges of combined inputs, for each thread, that have memory which stays in the cache. Others, of larger pieces, are
held in the memory of the new momentum."""
SCRATCH_BYTES = 8 * SCRATCH * RANGE
"""Most bytes of a thread's scratch; `Buffers` may double what it needs."""
VANISHED = 1e-30
"""A vector shorter than this part of the mean length counts as 0, because float32 could not hold its factor."""
CANCELLED = 1e-6
"""If the mean of the directions is shorter than this, they cancel each other. Then the plain mean is taken."""


@dataclass(frozen=True)
class Result:
    """A new version of a fragment."""

    theta: Array
    momentum: Array
    wire: memoryview
    """Θ in the codec of the network, as bytes. For float32 it is the memory of `theta`."""


@dataclass(frozen=True)
class _Arrays:
    """The arrays that one merge reads and writes. Threads compute ranges of them."""

    inputs: Sequence[Input]
    theta: Array
    momentum: Array
    rate: float
    mu: float
    new_theta: Array
    new_momentum: Array
    wire: NDArray[np.uint16]

    def combine(
        self, out: Array, factors: Sequence[NDArray[np.float32]], low: int, high: int, squared: bool
    ) -> float:
        """Computes `out` = Σ factors·inputs of a range, with factors from `_grouped`. Returns its squares' sum if
        `squared`, else 0."""
        squares = 0.0
        bits = [each.bits(low, high) for each in self.inputs]
        bits += [bits[0]] * (-len(bits) % kernels.GROUP)  # their factors are zero
        for m, group in enumerate(factors):
            a, b, c, d = bits[m * kernels.GROUP : (m + 1) * kernels.GROUP]
            squares = kernels.add(out, a, b, c, d, group, m == 0, squared and m + 1 == len(factors))
        return squares

    def step(self, combined: Array, scale: float, low: int, high: int) -> bool:
        """The outer step with `scale` times the combined input. Returns whether the new Θ is finite."""
        return bool(
            kernels.nesterov(
                self.theta[low:high],
                self.momentum[low:high],
                combined,
                scale,
                self.rate,
                self.mu,
                self.new_theta[low:high],
                self.new_momentum[low:high],
                self.wire[low:high],
            )
        )


class _PieceMerge:
    """Merges one piece. With RDA its ranges are stepped once all are combined, because that needs the length."""

    def __init__(
        self, p: int, arrays: _Arrays, ranges: Sequence[tuple[int, int]], plain: Sequence[float]
    ) -> None:
        """`plain`: the factors of a plain mean, which is used unless `aim` is called."""
        self.p, self.arrays, self.ranges, self.plain = p, arrays, ranges, _grouped(plain)
        self.radius: float | None = None
        self.factors = self.plain
        self.squares: dict[int, float] = {}
        self.combined = Event()
        """Set when all ranges are combined."""

    def aim(self, radius: float, directions: Sequence[float]) -> None:
        """Merges with RDA: the sum with the factors `directions` is scaled to the length `radius`."""
        self.radius, self.factors = radius, _grouped(directions)

    def combine(self, out: Array, low: int, high: int) -> None:
        self.squares[low] = self.arrays.combine(out, self.factors, low, high, self.radius is not None)
        if len(self.squares) == len(self.ranges):
            self.combined.set()

    @property
    def ready(self) -> bool:
        """Whether a combined range can be stepped."""
        return self.radius is None or self.combined.is_set()

    def step(self, combined: Array, low: int, high: int) -> bool:
        """Returns whether the new Θ is finite."""
        if self.radius is None:
            return self.arrays.step(combined, 1.0, low, high)
        if not self.combined.wait(COMBINE_SECONDS):
            raise TimeoutError(f"a merge's sums were not ready after {COMBINE_SECONDS} s")
        length = math.sqrt(math.fsum(self.squares.values()))
        if length > CANCELLED * self.radius:
            return self.arrays.step(combined, self.radius / length, low, high)
        self.arrays.combine(combined, self.plain, low, high, False)
        return self.arrays.step(combined, 1.0, low, high)


def merge_step(
    fragment: Fragment,
    gradients: Sequence[Gradient],
    theta: Array,
    momentum: Array,
    *,
    codec: Codec,
    rule: MergeRule,
    learning_rate: float,
    outer_momentum: float,
    guard: bool = True,
    buffers: Buffers | None = None,
    pool: Executor | None = None,
    helpers: int = 0,
) -> Result:
    """The next version of `fragment` from Θ and momentum, float32 [size], which are not changed.

    `guard`: no unit's norm counts for more than a multiple of the median (`clipping`).

    The memory of the new Θ, the momentum and the wire's bytes comes from `buffers`. Inputs are decoded in the cache.
    The calling thread computes, and with it up to `helpers` threads of the pool, as far as they are free.

    Raises:
        MergeError: the weights sum to 0 or are not finite, the parts are not the whole fragment, or the result is not
            finite.
    """
    total = math.fsum(each.weight for each in gradients)
    if not total > 0 or not math.isfinite(total):
        raise MergeError(f"the weights sum to {total}: nothing to merge")
    present = [each for each in gradients if each.weight > 0]
    inputs = [Input(fragment, each, codec) for each in present]
    norms = [each.norms(len(fragment.pieces)) for each in present]
    divisors = [each.divisor for each in present]
    shares = [each.weight / total for each in present]
    coded = BITS[codec].itemsize == 2
    room = buffers or Buffers(0)
    arrays = _Arrays(
        inputs,
        theta,
        momentum,
        learning_rate,
        outer_momentum,
        room.take(fragment.size, np.float32),
        room.take(fragment.size, np.float32),
        room.take(fragment.size if coded else 0, np.uint16),
    )
    merges = []
    for p, (piece, first) in enumerate(zip(fragment.pieces, fragment.offsets, strict=True)):
        ranges = cuts(inputs, first, first + piece.size, RANGE)
        lengths = [each[p] for each in norms]
        bounded = clipped(lengths) if guard else lengths
        merge = _PieceMerge(p, arrays, ranges, _divided(factors(shares, lengths, bounded), divisors))
        if rule == "RDA" and not piece.embedding:
            radius, directions = radial(lengths, bounded, shares)
            merge.aim(radius, _divided(directions, divisors))
        merges.append(merge)
    threads = max(1, min(helpers + 1, sum(len(merge.ranges) for merge in merges)))  # more would find no range
    scratch = [[room.take(RANGE, np.float32) for _ in range(SCRATCH)] for _ in range(threads)]
    for p in _compute(merges, scratch, pool):
        raise MergeError(f"the merged outer gradient of {fragment.pieces[p].tensor} is not finite")
    made = arrays.wire if coded else arrays.new_theta
    return Result(arrays.new_theta, arrays.new_momentum, memoryview(made.view(np.uint8).data))


def radial(
    norms: Sequence[float], bounded: Sequence[float], shares: Sequence[float]
) -> tuple[float, list[float]]:
    """(R, f) with R = Σ w‖v‖ and f = w·R/‖v‖. RDA is R·φ(Σ f·v) with φ(x) = x/‖x‖; the w sum to 1. R uses the
    `bounded` norms.

    ‖Σ f·v‖ / R is the length of the mean direction. R is 0 if all inputs are 0.
    """
    radius = math.fsum(share * norm for share, norm in zip(shares, bounded, strict=True))
    least = VANISHED * radius
    return radius, [
        share * (radius / norm) if norm > least else 0.0 for share, norm in zip(shares, norms, strict=True)
    ]


def warm(codec: Codec) -> None:
    """Compiles or loads what a merge in `codec` runs. It takes seconds in a new place, milliseconds later."""
    piece = Piece("warm", None, (1,), 1, embedding=False)
    fragment = Fragment(0, (piece,), 1, (0,))
    body, one = memoryview(bytearray(BITS[codec].itemsize)), np.zeros(1, np.float32)
    inputs = [Gradient(1.0, (HostPart(0, body, scan(fragment, body, codec, 0)),))]
    merge_step(fragment, inputs, one, one, codec=codec, rule="RDA", learning_rate=1.0, outer_momentum=0.0)


def _divided(factors: Sequence[float], divisors: Sequence[int]) -> list[float]:
    return [factor / divisor for factor, divisor in zip(factors, divisors, strict=True)]


def _grouped(factors: Sequence[float]) -> list[NDArray[np.float32]]:
    """Splits factors into arrays of as many as a kernel adds at a time, filled up with zeros."""
    padded = [*factors, *[0.0] * (-len(factors) % kernels.GROUP)]
    return list(np.array(padded, np.float32).reshape(-1, kernels.GROUP))


def _compute(
    merges: Sequence[_PieceMerge], scratch: Sequence[Sequence[Array]], pool: Executor | None
) -> list[int]:
    """Merges all pieces in as many threads as there are lists of scratch. Returns the pieces with a Θ that is not
    finite.

    Each thread combines the first range that no thread has taken. It steps the ranges that it has combined as soon as
    possible, while they are in its core's cache. The smallest pieces come last, so that the threads finish together.
    """
    failed: list[int] = []
    largest_first = sorted(merges, key=lambda merge: merge.ranges[0][0] - merge.ranges[-1][1])
    left = iter([(merge, *each) for merge in largest_first for each in merge.ranges])

    def work(scratch: Sequence[Array]) -> None:
        own: deque[tuple[_PieceMerge, int, int, Array, Array | None]] = deque()
        spare = list(scratch)

        def step() -> None:
            merge, low, high, combined, taken = own.popleft()
            if not merge.step(combined, low, high):
                failed.append(merge.p)
            if taken is not None:
                spare.append(taken)

        for merge, low, high in left:
            taken = spare.pop() if spare else None
            combined = merge.arrays.new_momentum[low:high] if taken is None else taken[: high - low]
            merge.combine(combined, low, high)
            own.append((merge, low, high, combined, taken))
            while own and own[0][0].ready:
                step()
        while own:
            step()

    helping = [pool.submit(work, each) for each in scratch[1:]] if pool else []
    try:
        work(scratch[0])
    finally:  # the memory must outlive every thread that writes to it
        for each in helping:
            if not each.cancel():
                each.result()
    return sorted(failed)

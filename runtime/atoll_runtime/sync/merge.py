"""From the units' outer gradients to the next version: radial-directional averaging (RDA) or the mean, then Nesterov.

All in float32, and the norms in float64. Inputs are summed in the order given, which the caller sorts by unit name,
and sums are cut at fixed places: the result is the same bit for bit, whatever the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, wait
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.sync import kernels
from atoll_runtime.sync.buffers import Buffers
from atoll_runtime.sync.fragments import Array, Fragment, Piece
from atoll_runtime.sync.gradients import WIRE, Codec, Gradient, Inputs, Part, PartsError, Scan, scan

__all__ = [
    "Codec",
    "Gradient",
    "MergeError",
    "Part",
    "Result",
    "Rule",
    "Scan",
    "merge_step",
    "radial",
    "scan",
    "warm",
]

T = TypeVar("T")
Rule = Literal["RDA", "Mean"]
RANGE = 1 << 19
"""Elements of a piece that a thread handles at a time: long beside the handing over. Sums are cut there."""
CANCELLED = 1e-6
"""Directions whose mean is shorter than this cancel; the direct mean is taken instead."""
VANISHED = 1e-30
"""A vector shorter than this part of the mean length has no direction: float32 could not hold its factor."""


class MergeError(ValueError):
    """The inputs have no meaningful mean."""


@dataclass(frozen=True)
class Result:
    """A new version of a fragment."""

    theta: Array
    momentum: Array
    wire: memoryview
    """Θ in the wire's codec, bytes; of float32 it is the memory of `theta`."""


def merge_step(
    fragment: Fragment,
    gradients: Sequence[Gradient],
    theta: Array,
    momentum: Array,
    *,
    codec: Codec,
    rule: Rule,
    learning_rate: float,
    outer_momentum: float,
    buffers: Buffers | None = None,
    pool: Executor | None = None,
) -> Result:
    """The next version of `fragment` from Θ and momentum, float32 [size], which stay as they are.

    Memory: the new Θ and momentum, and the wire's bytes, from `buffers`; inputs are decoded in the cache.
    Without a pool the caller does all the work; the pool's own work must not wait for a merge.

    Raises:
        MergeError: no weight at all, parts that are not the whole fragment, or a result that is not finite.
    """
    total = math.fsum(each.weight for each in gradients)
    if not total > 0 or not math.isfinite(total):
        raise MergeError(f"the weights sum to {total}: nothing to merge")
    present = [each for each in gradients if each.weight > 0]
    try:
        inputs = Inputs.of(fragment, present, codec)
    except PartsError as error:
        raise MergeError(str(error)) from error
    shares = [each.weight / total for each in present]
    room = buffers or Buffers(0)
    made = _Outputs(
        room.take(fragment.size, np.float32),
        room.take(fragment.size, np.float32),
        room.take(fragment.size if codec == "bf16" else 0, np.uint16),
    )
    work = _Work(fragment, inputs, theta, momentum, made, learning_rate, outer_momentum, pool)
    try:
        finite = _run(work, fragment, inputs, shares, rule)
    finally:
        work.finish()
    if not finite:
        raise MergeError("the merged outer gradient is not finite")
    wire = made.wire if codec == "bf16" else made.theta
    return Result(made.theta, made.momentum, memoryview(wire.view(np.uint8).data))


def warm(codec: Codec) -> None:
    """Compiles what a merge in `codec` runs, or loads it: seconds in a new place, milliseconds later on."""
    piece = Piece("warm", None, (1,), 1, embedding=False)
    fragment = Fragment(0, (piece,), 1, (0,))
    body, one = bytearray(WIRE[codec].itemsize), np.zeros(1, np.float32)
    inputs = [Gradient(1.0, (Part(0, body, scan(fragment, body, codec, 0)),))]
    merge_step(fragment, inputs, one, one, codec=codec, rule="RDA", learning_rate=1.0, outer_momentum=0.0)


def radial(norms: Sequence[float], shares: Sequence[float]) -> tuple[float, list[float]]:
    """(R, f) with R = Σ w‖v‖ and f = w·R/‖v‖: RDA is R·φ(Σ f·v), φ(x) = x/‖x‖, where the w sum to 1.

    ‖Σ f·v‖ / R is then the length of the mean direction. R is 0 when all inputs are.
    """
    radius = math.fsum(share * norm for share, norm in zip(shares, norms, strict=True))
    least = VANISHED * radius
    return radius, [
        share * (radius / norm) if norm > least else 0.0 for share, norm in zip(shares, norms, strict=True)
    ]


def norm(combined: Sequence[Future[float]]) -> float:
    """Waits for the sums of squares of a piece's ranges; their sum is exact, in any order."""
    wait(combined)  # once for all: to be woken for each of them costs as much as a range
    return math.sqrt(math.fsum(future.result() for future in combined))


def _run(work: _Work, fragment: Fragment, inputs: Inputs, shares: Sequence[float], rule: Rule) -> bool:
    """Piece by piece: combine, then scale and step. Whether all of the new Θ is finite."""
    stepped: list[Future[bool]] = []
    for p, piece in enumerate(fragment.pieces):  # the next one is combined while the last one's step ends
        direct = rule == "Mean" or piece.embedding
        radius, factors = (0.0, shares) if direct else radial(inputs.norms[p], shares)
        length = norm(work.combine(p, factors))
        if not math.isfinite(length):
            raise MergeError(f"the merged outer gradient of {piece.tensor} is not finite")
        scale = 1.0
        if length > CANCELLED * radius > 0:
            scale = radius / length
        elif radius:
            norm(work.combine(p, shares))
        stepped += work.step(p, scale)
    wait(stepped)
    return all(future.result() for future in stepped)


@dataclass(frozen=True)
class _Outputs:
    theta: Array
    momentum: Array
    """Holds a piece's combined input until its norm is known."""
    wire: NDArray[np.uint16]


class _Work:
    """Hands out the two passes over a piece, range by range."""

    def __init__(
        self,
        fragment: Fragment,
        inputs: Inputs,
        theta: Array,
        momentum: Array,
        made: _Outputs,
        rate: float,
        mu: float,
        pool: Executor | None,
    ) -> None:
        self._fragment, self._inputs, self._made, self._pool = fragment, inputs, made, pool
        self._theta, self._momentum = theta, momentum
        self._rate, self._mu = np.float32(rate), np.float32(mu)
        self._futures: list[Future[Any]] = []

    def combine(self, p: int, factors: Sequence[float]) -> list[Future[float]]:
        """new momentum ← Σ factors·inputs, for the time being; gives the ranges' sums of squares."""
        exact = np.array(factors, np.float32)

        def work(low: int, high: int) -> float:
            return self._inputs.combine(exact, self._made.momentum, low, high)

        return [self._submit(work, *at) for at in self._ranges(p)]

    def step(self, p: int, scale: float) -> list[Future[bool]]:
        """The outer step with the combined inputs, scaled; the range combined last, still in the cache, comes first."""

        def work(low: int, high: int) -> bool:
            at, made = slice(low, high), self._made
            return kernels.nesterov(
                self._theta[at],
                self._momentum[at],
                np.float32(scale),
                self._rate,
                self._mu,
                made.theta[at],
                made.momentum[at],
                made.wire[at],
            )

        return [self._submit(work, *at) for at in reversed(self._ranges(p))]

    def finish(self) -> None:
        """Waits for all work: it reads and writes memory that the caller is about to let go."""
        wait(self._futures)

    def _ranges(self, p: int) -> list[tuple[int, int]]:
        first = self._fragment.offsets[p]
        stop = first + self._fragment.pieces[p].size
        return [(low, min(low + RANGE, stop)) for low in range(first, stop, RANGE)]

    def _submit(self, work: Callable[[int, int], T], low: int, high: int) -> Future[T]:
        if self._pool is not None:
            future = self._pool.submit(work, low, high)
        else:
            future = Future()
            future.set_result(work(low, high))
        self._futures.append(future)
        return future

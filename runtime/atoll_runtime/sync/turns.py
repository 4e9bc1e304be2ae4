"""A merge's work in short ranges, and one compiled loop that any number of threads run at once to do it (numba).

Threads take the next range from one counter, so none waits for a slower one until the end. A piece merged by RDA is
read twice: COMBINE sums its inputs, and once all its ranges are, STEP scales the sums and takes the outer step.
A piece merged directly needs no norm, and is done at once: BOTH.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.sync.fragments import Array, Fragment
from atoll_runtime.sync.kernels import combine, kernel, nesterov
from atoll_runtime.sync.vectors import fetch_add, fetch_load, give_way

RANGE = 1 << 15
"""Elements of a range, at most: short, so that threads end together. Sums are cut there."""
LOOKAHEAD = 8 * RANGE
"""Elements that are combined between a piece's last COMBINE and its first STEP: other threads end their sums then.

Few enough that what was combined is still in the cache.
"""
COMBINE, STEP, BOTH = 0, 1, 2
CANCELLED = 1e-6
"""Directions whose mean is shorter than this cancel; the direct mean is taken instead."""
SPIN = 1 << 10
"""Looks at another thread's sums before the core is offered to others."""


@dataclass(frozen=True)
class Turns:
    """The order of a merge's work."""

    jobs: NDArray[np.int64]
    """[jobs, 6]: what, piece, first element, the one after the last, segment, place of the sum.

    A STEP comes after all COMBINEs of its piece: one thread alone never waits, and many wait for running ones only.
    """
    places: NDArray[np.int64]
    """[pieces + 1]: where each piece's sums start."""


@lru_cache(maxsize=1024)
def turns(fragment: Fragment, bounds: tuple[int, ...], direct: tuple[bool, ...]) -> Turns:
    """Cuts the pieces at every RANGE elements, and at `bounds`, where the segments of the inputs start and end.

    Large pieces come first, and direct ones, which nobody waits for, last.
    """
    timed: list[tuple[int, int, tuple[int, int, int, int, int, int]]] = []
    counts = [0] * len(fragment.pieces)
    cuts = [_cuts(fragment, p, bounds) for p in range(len(fragment.pieces))]
    places = np.cumsum([0, *(len(each) for each in cuts)])
    now = 0
    for p in sorted(range(len(cuts)), key=lambda p: (direct[p], -fragment.pieces[p].size)):
        for low, high, segment in cuts[p]:
            place = int(places[p]) + counts[p]
            counts[p] += 1
            timed.append((now, 0, (BOTH if direct[p] else COMBINE, p, low, high, segment, place)))
            now += high - low
        if not direct[p]:  # the range combined last, still in the nearest cache, comes first
            timed += [(now + LOOKAHEAD, 1, (STEP, p, *cut, 0)) for cut in reversed(cuts[p])]
    timed.sort(key=lambda each: each[:2])
    return Turns(np.array([job for _, _, job in timed], np.int64).reshape(-1, 6), places.astype(np.int64))


def _cuts(fragment: Fragment, p: int, bounds: Sequence[int]) -> list[tuple[int, int, int]]:
    """(start, stop, segment) of a piece's ranges."""
    first, stop = fragment.offsets[p], fragment.offsets[p] + fragment.pieces[p].size
    return [
        (low, min(low + RANGE, end, stop), segment)
        for segment, (begin, end) in enumerate(pairwise(bounds))
        for low in range(max(begin, first), min(end, stop), RANGE)
    ]


@kernel
def take_turns(
    jobs: NDArray[np.int64],
    places: NDArray[np.int64],
    like: NDArray[Any],
    addresses: NDArray[np.int64],
    factors: NDArray[np.float32],
    shares: NDArray[np.float32],
    radii: NDArray[np.float64],
    theta: Array,
    momentum: Array,
    rate: np.float32,
    mu: np.float32,
    new_theta: Array,
    new_momentum: Array,
    wire: NDArray[np.uint16],
    taken: NDArray[np.int64],
    done: NDArray[np.int64],
    sums: NDArray[np.float64],
    faults: NDArray[np.int64],
) -> None:
    """Does what no other thread has taken yet, until nothing is left; all threads are given the same arrays.

    addresses: [segments, M], factors: [pieces, M] and shares: [M], radii: [pieces] (`merge.radial`).
    taken: [1], done: [pieces], sums: [places], faults: [pieces], all 0 at first. A fault is 1 where a piece's combined
    input is not finite, and 2 where its new Θ is not. The arrays must live until every thread has returned.
    """
    counter, ready = taken.ctypes.data, done.ctypes.data
    while True:
        j = fetch_add(counter, 1)
        if j >= jobs.shape[0]:
            return
        what, p, low, high, segment, place = jobs[j]
        scale = np.float32(1)
        if what == COMBINE:
            sums[place] = combine(like, addresses[segment], factors[p], new_momentum, low, high)
            fetch_add(ready + 8 * p, 1)
            continue
        if what == BOTH:
            combine(like, addresses[segment], shares, new_momentum, low, high)
        else:
            looks = 0
            while fetch_load(ready + 8 * p) < places[p + 1] - places[p]:
                looks += 1
                if looks % SPIN == 0:
                    give_way()
            total = 0.0
            for k in range(places[p], places[p + 1]):
                total += sums[k]
            length = np.sqrt(total)
            if not np.isfinite(length):
                faults[p] = 1
                continue
            if length > CANCELLED * radii[p]:
                if radii[p] > 0:
                    scale = np.float32(radii[p] / length)
            else:
                combine(like, addresses[segment], shares, new_momentum, low, high)
        finite = nesterov(
            theta[low:high],
            momentum[low:high],
            scale,
            rate,
            mu,
            new_theta[low:high],
            new_momentum[low:high],
            wire[low:high],
        )
        if not finite:
            faults[p] = 2

"""From the units' outer gradients to the next version: radial-directional averaging (RDA) or the mean, then Nesterov.

All in float32, and the norms in float64. Inputs are summed in the order given, which the caller sorts by unit name,
and sums are cut at fixed places: the result is the same bit for bit, whatever the number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Executor, wait
from dataclasses import dataclass
from typing import Literal

import numpy as np

from atoll_runtime.sync.buffers import Buffers
from atoll_runtime.sync.fragments import Array, Fragment, Piece
from atoll_runtime.sync.gradients import WIRE, Codec, Gradient, Inputs, Part, PartsError, Scan, scan
from atoll_runtime.sync.turns import take_turns, turns

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

Rule = Literal["RDA", "Mean"]
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
    helpers: int = 0,
) -> Result:
    """The next version of `fragment` from Θ and momentum, float32 [size], which stay as they are.

    Memory: the new Θ and momentum, and the wire's bytes, from `buffers`; inputs are decoded in the cache.
    The caller works itself, and as many of the pool's threads as `helpers` says, where they are free.

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
    direct = tuple(rule == "Mean" or piece.embedding for piece in fragment.pieces)
    means = [
        (0.0, shares) if plain else radial(norms, shares)
        for plain, norms in zip(direct, inputs.norms, strict=True)
    ]
    work = turns(fragment, inputs.bounds, direct)
    coded = WIRE[codec].itemsize == 2
    room = buffers or Buffers(0)
    new_theta, new_momentum = room.take(fragment.size, np.float32), room.take(fragment.size, np.float32)
    wire = room.take(fragment.size if coded else 0, np.uint16)
    pieces = len(fragment.pieces)
    faults = np.zeros(pieces, np.int64)
    together = (
        work.jobs,
        work.places,
        inputs.like,
        inputs.addresses,
        np.array([factors for _, factors in means], np.float32).reshape(pieces, len(present)),
        np.array(shares, np.float32),
        np.array([radius for radius, _ in means], np.float64),
        theta,
        momentum,
        np.float32(learning_rate),
        np.float32(outer_momentum),
        new_theta,
        new_momentum,
        wire,
        np.zeros(1, np.int64),
        np.zeros(pieces, np.int64),
        np.zeros(work.places[-1], np.float64),
        faults,
    )
    helping = [pool.submit(take_turns, *together) for _ in range(helpers)] if pool else []
    try:
        take_turns(*together)
    finally:  # the memory must not go before those have returned
        wait([each for each in helping if not each.cancel()])
    for piece, fault in zip(fragment.pieces, faults.tolist(), strict=True):
        if fault:
            raise MergeError(f"the merged outer gradient of {piece.tensor} is not finite")
    return Result(new_theta, new_momentum, memoryview((wire if coded else new_theta).view(np.uint8).data))


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

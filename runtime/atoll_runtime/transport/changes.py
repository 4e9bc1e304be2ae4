"""A fragment's next version as what it changes in the one before, in four bits an element (numpy only).

The syncer keeps what its learners hold: W, bfloat16. Of a new Θ it sends Q = int4(Θ − W), and both go on with
W′ = bf16(W + Q), computed by the same lines here. What Q and bfloat16 leave out is in Θ − W′, and goes with the next
change: errors do not add up (error feedback; Richtárik et al., EF21-P, arXiv 2209.15218). Whoever does not hold W
gets W′ whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import Array
from atoll_runtime.transport import codecs, int4
from atoll_runtime.transport.messages import WHOLE, FetchHead
from atoll_runtime.transport.transport import TransportError

WIRE = codecs.DTYPES["int4"]
"""bfloat16, in which W is held."""

KEPT = 2
"""Bodies' worth of parts that are kept: as many ways to divide a fragment among a unit's hosts."""


@dataclass(frozen=True)
class Change:
    """From a fragment's version `base` to the next one."""

    base: int
    body: memoryview
    """int4, of the whole fragment."""
    _parts: dict[tuple[int, int], memoryview] = field(default_factory=dict, repr=False, compare=False)
    """By first block and the one after the last: hosts of like units fetch the same ones."""

    def part(self, start: int, stop: int) -> memoryview:
        """The blocks that hold elements [start, stop) of the padded fragment: zeros beyond its end. For one thread."""
        first, last = _blocks(start, stop)
        if (first, last) == (0, len(self.body) // int4.size(1)):
            return self.body
        part = self._parts.get((first, last))
        if part is None:
            part = self._copied(first, last)
            if part.nbytes + sum(other.nbytes for other in self._parts.values()) <= KEPT * self.body.nbytes:
                self._parts[first, last] = part
        return part

    def _copied(self, first: int, last: int) -> memoryview:
        raw = np.frombuffer(self.body, np.uint8)
        blocks = raw.size // int4.size(1)
        out = np.zeros(int4.size((last - first) * int4.BLOCK), np.uint8)
        for width, source, target in (
            (int4.SCALE.itemsize, 0, 0),
            (int4.BLOCK // 2, blocks * int4.SCALE.itemsize, (last - first) * int4.SCALE.itemsize),
        ):
            found = raw[source + first * width : source + min(last, blocks) * width]
            out[target : target + found.size] = found
        return memoryview(out.data)


def size(start: int, stop: int) -> int:
    """Bytes of a part of a change."""
    first, last = _blocks(start, stop)
    return int4.size((last - first) * int4.BLOCK)


def advance(held: memoryview, theta: Array, out: memoryview, pool: Executor | None = None) -> memoryview:
    """The body that leads from `held`, W, towards `theta`, float32; writes W′ to `out`. All of one length."""
    old, new = np.frombuffer(held, WIRE), np.frombuffer(out, WIRE)
    blocks = -(-theta.size // int4.BLOCK)
    body = np.empty(int4.size(theta.size), np.uint8)
    scales, nibbles = np.split(body, [blocks * int4.SCALE.itemsize])

    def run(start: int) -> None:
        span = slice(start, start + int4.CHUNK)
        coded = int4.encode(theta[span] - old[span].astype(np.float32))
        count = coded.nbytes // int4.size(1)
        first, width = start // int4.BLOCK, int4.SCALE.itemsize
        raw = np.frombuffer(coded, np.uint8)
        scales[first * width : (first + count) * width] = raw[: count * width]
        nibbles[start // 2 : start // 2 + count * int4.BLOCK // 2] = raw[count * width :]
        new[span] = _moved(old[span], int4.decode(coded, theta[span].size))

    _over(theta.size, run, pool)
    return memoryview(body.data)


def applied(held: NDArray[Any], body: memoryview, start: int) -> NDArray[Any]:
    """W′ of elements [start, start + held.size) from W, `held`, bfloat16, and their part of a change.

    Raises:
        ValueError: the part is of another size.
    """
    stop = start + held.size
    if len(body) != size(start, stop):
        raise ValueError(f"a change of [{start}, {stop}) has {size(start, stop)} bytes, not {len(body)}")
    before = start % int4.BLOCK
    steps = int4.decode(body, before + held.size)[before:]
    new = np.empty_like(held)
    for first in range(0, held.size, int4.CHUNK):
        span = slice(first, first + int4.CHUNK)
        new[span] = _moved(held[span], steps[span])
    return new


@dataclass(frozen=True)
class Holding:
    """This host's part of a fragment. Its bits are the shard's own of that version, in that series."""

    version: int
    series: str
    part: NDArray[Any]


NOTHING = Holding(WHOLE, "", np.empty(0))


class Holdings:
    """One shard's fragments. With int4 it keeps two bytes an element of this host's parts; else nothing.

    Args:
        bounds: this host's [start, stop) in each padded fragment.
    """

    def __init__(self, codec: str, bounds: Sequence[tuple[int, int]]) -> None:
        self._codec, self._bounds = codec, tuple(bounds)
        self._held: dict[int, Holding] = {}

    def of(self, p: int) -> Holding:
        """What a fetch names as held."""
        return self._held.get(p, NOTHING)

    def take(self, head: FetchHead, body: memoryview) -> NDArray[Any]:
        """The part that has come, in the wire's dtype; it is never written to again.

        Raises:
            TransportError: the body is not what was asked for.
        """
        p = head.fragment
        start, stop = self._bounds[p]
        if head.base == WHOLE:
            try:
                part = codecs.view(body, self._codec)
            except ValueError as error:
                raise TransportError(f"{len(body)} bytes came: {error}") from error
            if part.shape != (stop - start,):
                raise TransportError(f"{part.size} elements came, {stop - start} were asked for")
        else:
            held = self.of(p)
            if (head.base, head.series) != (held.version, held.series):
                raise TransportError(f"a change of version {head.base} came, but {held.version} is held")
            try:
                part = applied(held.part, body, start)
            except ValueError as error:
                raise TransportError(str(error)) from error
        if self._codec == "int4":
            self._held[p] = Holding(head.version, head.series, part)
        return part


def _moved(held: NDArray[Any], steps: Array) -> NDArray[Any]:
    """To nearest even; the sum is rounded to float32 before."""
    return (held.astype(np.float32) + steps).astype(WIRE)


def _blocks(start: int, stop: int) -> tuple[int, int]:
    return start // int4.BLOCK, -(-stop // int4.BLOCK)


def _over(elements: int, run: Callable[[int], None], pool: Executor | None) -> None:
    starts = range(0, elements, int4.CHUNK)
    for _ in map(run, starts) if pool is None else pool.map(run, starts):
        pass

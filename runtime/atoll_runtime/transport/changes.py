"""A fragment's next version as what it changes in the one before, in four bits an element (numpy only).

The syncer keeps what learners that fetch changes hold: W, bfloat16. Of a new Θ it sends Q = int4(Θ − W), and both go on
with W′ = bf16(W + Q), computed by the same lines here. What Q and bfloat16 leave out is in Θ − W′, and goes with the
next change: errors do not add up (error feedback; Richtárik et al., EF21-P, arXiv 2209.15218). The first W is bf16(Θ).
Whoever does not hold W gets a version whole: W′, or, where int8 is made too, Θ in int8. What int8 leaves out of that
grows by a half in two hundred changes, because both ends add the same ones. So after `FRESH` of them it is sent anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.fragments import Array
from atoll_runtime.transport import blocks, codecs
from atoll_runtime.transport.blocks import Blocks
from atoll_runtime.transport.messages import WHOLE, FetchHead
from atoll_runtime.transport.transport import TransportError

FRESH = 128
"""Changes after which a host fetches a whole version."""


@dataclass(frozen=True)
class Change:
    """From a fragment's version `base` to the next one."""

    base: int
    blocks: Blocks
    """int4, of the whole fragment."""


def advance(held: memoryview, theta: Array, out: memoryview, pool: Executor | None = None) -> Blocks:
    """What leads from `held`, W, towards `theta`, float32; writes W′ to `out`. All of one length."""
    old, new = np.frombuffer(held, codecs.BF16), np.frombuffer(out, codecs.BF16)

    def run(span: slice) -> memoryview:
        coded = blocks.encode(theta[span] - old[span].astype(np.float32), "int4")
        new[span] = _moved(old[span], blocks.decode(coded, "int4", theta[span].size))
        return coded

    return _joined(theta.size, "int4", run, pool)


def encoded(theta: Array, codec: str, pool: Executor | None = None) -> Blocks:
    """A fragment in blocks."""
    return _joined(theta.size, codec, lambda span: blocks.encode(theta[span], codec), pool)


def applied(held: NDArray[Any], body: memoryview) -> NDArray[Any]:
    """W′ from W, `held`, bfloat16, and the same part of a change. Both start a block."""
    steps = blocks.decode(body, "int4", held.size)
    new = np.empty_like(held)
    for span in _spans(held.size):
        new[span] = _moved(held[span], steps[span])
    return new


@dataclass(frozen=True)
class Holding:
    """This host's part of a fragment, bfloat16: W of that version and series, but for what the first body left out."""

    version: int
    series: str
    part: NDArray[Any]
    changes: int = 0
    """Since it came whole."""


NOTHING = Holding(WHOLE, "", np.empty(0))


class Holdings:
    """This host's parts of one shard's fragments: two bytes an element of those that are fetched as changes.

    Args:
        codec: of the run; parts are given out in its dtype.
        bounds: this host's [start, stop) in each padded fragment.
        exact: they must be the shard's own bits.
    """

    def __init__(self, codec: str, bounds: Sequence[tuple[int, int]], exact: bool = False) -> None:
        self._codec, self._bounds, self._exact = codec, tuple(bounds), exact
        self._held: dict[int, Holding] = {}

    def of(self, p: int) -> Holding:
        """What a fetch names as held."""
        return self._held.get(p, NOTHING)

    def wanted(self, p: int, codec: str) -> str:
        """The codec to ask for: where nothing is held yet, or for long, a whole version comes in place of a change."""
        if codec != "int4" or self._codec == "int4" or self._exact:
            return codec
        held = self.of(p)
        return "int8" if held is NOTHING or held.changes >= FRESH else "int4"

    def take(self, head: FetchHead, body: memoryview, changes: bool) -> NDArray[Any]:
        """The part that has come, in the dtype of the run's codec; it is never written to again.

        Args:
            changes: the next version shall come as a change of it.

        Raises:
            TransportError: the body is not what was asked for.
        """
        p = head.fragment
        start, stop = self._bounds[p]
        held, size = self.of(p), stop - start
        if head.codec not in codecs.DTYPES or len(body) != codecs.size(size, head.codec):
            raise TransportError(f"{len(body)} bytes of {head.codec} came for [{start}, {stop})")
        if head.codec == "int4":
            if (head.base, head.series) != (held.version, held.series):
                raise TransportError(f"a change of version {head.base} came, but {held.version} is held")
            part, count = applied(held.part, body), held.changes + 1
        else:
            part, count = codecs.view(codecs.unpack(body, head.codec, size, self._codec), self._codec), 0
        if changes:
            part = part.astype(codecs.BF16, copy=False)
            self._held[p] = Holding(head.version, head.series, part, count)
        else:
            self._held.pop(p, None)
        return part.astype(codecs.DTYPES[self._codec], copy=False)


def _moved(held: NDArray[Any], steps: Array) -> NDArray[Any]:
    """To nearest even; the sum is rounded to float32 before."""
    return (held.astype(np.float32) + steps).astype(codecs.BF16)


def _spans(elements: int) -> list[slice]:
    return [slice(start, start + blocks.CHUNK) for start in range(0, elements, blocks.CHUNK)]


def _joined(elements: int, codec: str, run: Callable[[slice], memoryview], pool: Executor | None) -> Blocks:
    """The bodies that `run` makes of the spans of a vector, as one of the whole."""
    spans = _spans(elements)
    return blocks.joined(codec, list(map(run, spans) if pool is None else pool.map(run, spans)))

"""A fragment's next version as its change from the one before, in four bits an element (numpy only).

The syncer keeps W, bfloat16, which learners that fetch changes also hold. For a new Θ it sends Q = int4(Θ − W). Both
ends then continue with W′ = bf16(W + Q), computed by the same lines here. The errors of Q and bfloat16 are in Θ − W′
and part of the next change, so they do not add up (error feedback; Richtárik et al., EF21-P, arXiv 2209.15218).
The first W is bf16(Θ). A host that does not hold W gets a whole version: W′, or Θ in int8 if the syncer encodes that
too. The error of int8 grows by a half in two hundred changes, because both ends add the same changes. So a host
fetches a whole version again `FRESH` changes after one in int8.
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
from atoll_runtime.transport.messages import WHOLE, FetchHead
from atoll_runtime.transport.transport import TransportError

FRESH = 128
"""Changes after a version in int8 with which a host fetches a whole version again."""


@dataclass(frozen=True)
class Change:
    """The change from a fragment's version `base` to the next one."""

    base: int
    body: memoryview
    """The whole fragment, int4."""


def advance(held: memoryview, theta: Array, out: memoryview, pool: Executor | None = None) -> memoryview:
    """The change Q from `held`, W, towards `theta`, float32. Writes W′ to `out`. All have the same length."""
    old, new = np.frombuffer(held, codecs.BF16), np.frombuffer(out, codecs.BF16)

    def run(span: slice) -> memoryview:
        coded = blocks.encode(theta[span] - old[span].astype(np.float32), "int4")
        new[span] = _moved(old[span], blocks.decode(coded, "int4", theta[span].size))
        return coded

    return _joined(theta.size, run, pool)


def encoded(theta: Array, codec: str, pool: Executor | None = None) -> memoryview:
    """A fragment in blocks."""
    return _joined(theta.size, lambda span: blocks.encode(theta[span], codec), pool)


def applied(held: NDArray[Any], body: memoryview) -> NDArray[Any]:
    """W′ from W, `held`, bfloat16, and the same part of a change. Both begin at a block."""
    steps = blocks.decode(body, "int4", held.size)
    new = np.empty_like(held)
    for span in _spans(held.size):
        new[span] = _moved(held[span], steps[span])
    return new


@dataclass(frozen=True)
class Holding:
    """This host's part of a fragment, bfloat16: W of that version and series, except for the first body's error."""

    version: int
    series: str
    part: NDArray[Any]
    changes: int | None = None
    """Changes applied since it came in int8, or `FRESH` if it is to come so next; None if it is W and needs not."""


NOTHING = Holding(WHOLE, "", np.empty(0), FRESH)


class Holdings:
    """This host's parts of one shard's fragments. Keeps those that are fetched as changes, two bytes an element.

    Args:
        codec: that of the run; parts are returned in its dtype.
        bounds: this host's [start, stop) in each padded fragment.
        exact: parts must have the same bits as the shard's.
    """

    def __init__(self, codec: str, bounds: Sequence[tuple[int, int]], exact: bool = False) -> None:
        self._codec, self._bounds, self._exact = codec, tuple(bounds), exact
        self._held: dict[int, Holding] = {}

    def of(self, p: int) -> Holding:
        """The part that a fetch names as held."""
        return self._held.get(p, NOTHING)

    def wanted(self, p: int, codec: str) -> str:
        """The codec to ask for: int8, a whole version, instead of int4 `FRESH` changes after one in int8, after W came
        because a version was missed, or if nothing is held."""
        stale = codec == "int4" and not self._exact and (self.of(p).changes or 0) >= FRESH
        return "int8" if stale else codec

    def take(self, head: FetchHead, body: memoryview, changes: bool) -> NDArray[Any]:
        """The part from a fetched body, in the dtype of the run's codec. It is not written to again.

        Args:
            changes: keep the part, so that the next version can come as a change of it.

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
            part = applied(held.part, body)
            count = None if held.changes is None else held.changes + 1
        else:
            part = codecs.view(codecs.unpack(body, head.codec, size, self._codec), self._codec)
            # A link that carries changes alone would miss every version of those that come in bfloat16.
            missed = changes and head.codec == "bf16" and held is not NOTHING
            count = 0 if head.codec == "int8" else FRESH if missed else None
        if changes:
            part = part.astype(codecs.BF16, copy=False)
            self._held[p] = Holding(head.version, head.series, part, count)
        else:
            self._held.pop(p, None)
        return part.astype(codecs.DTYPES[self._codec], copy=False)


def _moved(held: NDArray[Any], steps: Array) -> NDArray[Any]:
    """bf16(W + Q), to nearest even; the sum is rounded to float32 first."""
    return (held.astype(np.float32) + steps).astype(codecs.BF16)


def _spans(elements: int) -> list[slice]:
    return [slice(start, start + blocks.CHUNK) for start in range(0, elements, blocks.CHUNK)]


def _joined(elements: int, run: Callable[[slice], memoryview], pool: Executor | None) -> memoryview:
    """Joins the bodies that `run` makes of the spans of a vector into one body."""
    spans = _spans(elements)
    return memoryview(b"".join(map(run, spans) if pool is None else pool.map(run, spans)))

"""Compares bytes per second of merges with copies of the same bytes, in turns in one process.

A merge of n elements from M learners reads M·n elements in the codec's width, Θ and momentum (8·n bytes), and writes
Θ and momentum (8·n bytes). The sum B is the figure's bytes. The merge also writes Θ in the codec for the wire, which
is not counted. The copy reads B/2 and writes B/2 bytes with all threads. A turn merges all fragments, one after the
other, as in a syncer, and then makes as many copies. So neither pays for what the other has left in the caches. The
memory of replaced versions is used again.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from atoll_bench.figures import spread
from atoll_cli.errors import UsageError
from atoll_runtime.contract import Codec, Dimensions, ModelSpec
from atoll_runtime.merge.buffers import Buffers
from atoll_runtime.merge.gradients import BITS, Gradient, scan
from atoll_runtime.merge.rda import SCRATCH_BYTES, merge_step
from atoll_runtime.model import describe
from atoll_runtime.payloads import HostPart
from atoll_runtime.protocol.fragments import Fragment, Layout, LayoutError, build_layout

COLD = 256 << 20
"""Bytes over which inputs and copies rotate, so that the next ones are in no cache."""
LAYER = Dimensions(layers=1, width=768, heads=12, kv_heads=4, hidden=2048)
"""The layers of the preset 125m."""
CODECS: tuple[Codec, ...] = ("bf16", "float32")
RATE, MOMENTUM = 0.7, 0.9


@dataclass(frozen=True)
class MergeFigure:
    """One setting's result; times are medians, spreads quartiles."""

    learners: int
    parameters: int
    fragments: int
    codec: Codec
    threads: int
    value: float
    """Bytes per second of the merge."""
    copy: float
    """Bytes per second of the copy."""
    ratio: float
    """Seconds of a turn's copies / seconds of its merges; the median over the turns."""
    ratio_spread: tuple[float, float]


def layout_of(parameters: int, fragments: int) -> Layout:
    """The layout of a decoder with at least `parameters` parameters, in layers of the preset 125m. Raises `UsageError`
    if it needs more layers than a model may have."""
    try:
        return build_layout(describe(model_of(parameters)), fragments)
    except LayoutError as error:
        raise UsageError(f"--fragments: {error}") from error


def model_of(parameters: int) -> ModelSpec:
    """The decoder of `layout_of`. Raises the same error."""
    layer = sum(math.prod(tensor.shape) for tensor in describe(_model(1)) if tensor.stacked)
    layers = max(1, -(-parameters // layer))
    if layers > 512:
        raise UsageError(f"--parameters {parameters}: at most {512 * layer}")
    return _model(layers)


def _model(layers: int) -> ModelSpec:
    return ModelSpec(dimensions=LAYER.model_copy(update={"layers": layers}))


def measure(
    parameters: int, fragments: int, codec: Codec | None, learners: Sequence[int], repeat: int
) -> Iterator[MergeFigure]:
    """Measures one codec, or all of them, with each number of learners. Raises what `layout_of` raises."""
    layout = layout_of(parameters, fragments)
    for each in CODECS if codec is None else [codec]:
        for count in learners:
            yield merges(layout, count, each, repeat)


def merges(layout: Layout, learners: int, codec: Codec, repeat: int) -> MergeFigure:
    """Takes `repeat` turns with all cores, after an uncounted one."""
    threads = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(threads) as pool:
        bench = _Bench(layout, learners, codec, threads, pool)
        turns = [bench.turn() for _ in range(1 + repeat)]
    merged, copied = np.array(turns[1:]).T
    moved = layout.size * bench.element
    ratio, low, high = spread(copied / merged)
    return MergeFigure(
        learners=learners,
        parameters=layout.size,
        fragments=len(layout.fragments),
        codec=codec,
        threads=threads,
        value=spread(moved / merged)[0],
        copy=spread(moved / copied)[0],
        ratio=ratio,
        ratio_spread=(low, high),
    )


class _Bench:
    """The model and its inputs."""

    def __init__(
        self, layout: Layout, learners: int, codec: Codec, threads: int, pool: ThreadPoolExecutor
    ) -> None:
        self.codec, self.threads, self.pool = codec, threads, pool
        self.width = BITS[codec].itemsize
        self.element = learners * self.width + 16
        """Bytes of an element that count."""
        largest = max(fragment.size for fragment in layout.fragments)
        noise = np.random.default_rng(0).standard_normal(2 * largest, np.float32)
        wire = noise if codec == "float32" else (noise.view(np.uint32) >> 16).astype(np.uint16)
        rounds = max(2, -(-COLD // (largest * learners * self.width)))
        starts = np.linspace(0, largest, rounds * learners, dtype=int)
        bodies = [memoryview(wire[start : start + largest].copy().view(np.uint8).data) for start in starts]
        self.fragments = layout.fragments
        self.inputs = [
            self._scanned(fragment, bodies[fragment.id % rounds * learners :][:learners])
            for fragment in layout.fragments
        ]
        self.theta = [noise[: fragment.size].copy() for fragment in layout.fragments]
        self.momentum = [np.zeros_like(theta) for theta in self.theta]
        self.wires = [memoryview(b"")] * len(layout.fragments)
        self.buffers = Buffers(2 * largest * (8 + self.width) + threads * SCRATCH_BYTES)
        half = max(COLD, largest * self.element) // 2
        self.source, self.target = np.ones(half, np.uint8), np.ones(half, np.uint8)
        self.copied = 0

    def _scanned(self, fragment: Fragment, bodies: Sequence[memoryview]) -> list[Gradient]:
        cut = [body[: fragment.size * self.width] for body in bodies]
        return [
            Gradient(1.0 + unit, (HostPart(0, body, scan(fragment, body, self.codec, 0)),))
            for unit, body in enumerate(cut)
        ]

    def turn(self) -> tuple[float, float]:
        """Returns the seconds of the merges, and of the copies after them."""
        began = time.perf_counter()
        for fragment in self.fragments:
            self.merge(fragment)
        merged = time.perf_counter()
        for fragment in self.fragments:
            self.copy(fragment.size * self.element)
        return merged - began, time.perf_counter() - merged

    def merge(self, fragment: Fragment) -> None:
        p = fragment.id
        new = merge_step(
            fragment,
            self.inputs[p],
            self.theta[p],
            self.momentum[p],
            codec=self.codec,
            rule="RDA",
            learning_rate=RATE,
            outer_momentum=MOMENTUM,
            buffers=self.buffers,
            pool=self.pool,
            helpers=self.threads - 1,
        )
        self.theta[p], self.momentum[p], self.wires[p] = new.theta, new.momentum, new.wire

    def copy(self, moved: int) -> None:
        """Reads and writes moved/2 bytes, at another place each time. The threads take equal shares."""
        half = moved // 2
        if self.copied + half > self.source.size:
            self.copied = 0
        cuts = [self.copied + half * i // self.threads for i in range(self.threads + 1)]
        self.copied += half
        list(self.pool.map(self._copy, cuts[:-1], cuts[1:]))

    def _copy(self, low: int, high: int) -> None:
        np.copyto(self.target[low:high], self.source[low:high])

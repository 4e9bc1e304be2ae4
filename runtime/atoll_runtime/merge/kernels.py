"""Compiled loops over contiguous elements: sum squares, combine, outer step (numba).

They release the GIL and start no threads. Every rounding is as written: no fastmath, no fused multiply-add, sums in a
fixed order. So a result does not depend on the machine's vector width.

Elements are passed as bits: uint32 for float32, or uint16 for bfloat16, which is the upper half of a float32.
"""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.caching import FunctionCache
from numba.extending import intrinsic
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])
GROUP = 4
"""Inputs that `add` reads at a time."""
LANES = 64
"""Independent sums: enough to hide the latency of an addition."""
LINE = 64
"""Bytes that a memory access moves."""
ROW = 64
"""Elements that a loop takes at a time: whole lines of float32 and of bfloat16."""
MAGNITUDE, HALF, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7FFF), np.uint32(0x7F800000)
"""Bits of a float32: all but its sign; less than half of what a bfloat16 omits; ∞, which only NaN exceeds."""


class _Cache(FunctionCache):  # type: ignore[misc]
    """Compiled code on the disk. It never fails a merge: without a usable file the process compiles the code itself.

    numba does not sync its files, so a power loss can leave them truncated. It reads the index, writes it, and then
    writes the code, so two concurrent processes could store code under each other's name. A lock prevents that.

    Code belongs to a source by the source's content. numba uses the source's time, which is the same in every image.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        source = Path(function.__code__.co_filename).read_bytes()
        self._cache_file._source_stamp = hashlib.sha256(source).hexdigest()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._locked():
            try:
                return super().load_overload(sig, target_context)
            except Exception:  # a truncated file can raise anything
                with suppress(OSError):
                    self.flush()
                return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with self._locked(), suppress(OSError):  # read-only, or full
            super().save_overload(sig, data)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as held:
            with suppress(OSError):  # read-only, so no process writes there
                lock = Path(self._cache_file._index_path).with_suffix(".lock")
                lock.parent.mkdir(parents=True, exist_ok=True)
                fcntl.flock(held.enter_context(lock.open("a")), fcntl.LOCK_EX)
            yield


def kernel(function: Function) -> Function:
    """Compiles at the first call. Keeps the code beside the source, in the user's cache or in NUMBA_CACHE_DIR."""
    compiled = njit(nogil=True)(function)
    with suppress(RuntimeError, OSError):  # none of these folders can be written, or there is no source
        compiled._cache = _Cache(function)
    result: Function = compiled
    return result


@kernel
def squares(bits: NDArray[Any]) -> float:
    """Σ v² in float64.

    It is finite exactly if every element is, because the square of a float32 cannot overflow a float64.
    """
    shift = np.uint32(32 - 8 * bits.itemsize) & np.uint32(16)
    lanes = np.zeros(LANES)
    whole = bits.size - bits.size % LANES
    for row in range(0, whole, LANES):
        for j in range(LANES):
            x = np.float64(np.uint32(np.uint32(bits[row + j]) << shift).view(np.float32))
            lanes[j] += x * x
    for j in range(bits.size - whole):
        x = np.float64(np.uint32(np.uint32(bits[whole + j]) << shift).view(np.float32))
        lanes[j] += x * x
    total = 0.0
    for lane in lanes:
        total += lane
    return total


@njit(inline="always")  # type: ignore[untyped-decorator]  # with a constant size it is vectorised without checks
def add_row(
    out: NDArray[np.float32],
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    d: NDArray[Any],
    size: int,
    factors: tuple[np.float32, np.float32, np.float32, np.float32],
    first: bool,
    lanes: NDArray[np.float64],
) -> None:
    """`add` of the first `size` elements, at most `ROW`. Adds their squares to `lanes` unless it is empty."""
    shift = np.uint32(32 - 8 * a.itemsize) & np.uint32(16)
    f0, f1, f2, f3 = factors
    for i in range(size):
        x = np.float32(0) if first else out[i]
        x += f0 * np.uint32(np.uint32(a[i]) << shift).view(np.float32)
        x += f1 * np.uint32(np.uint32(b[i]) << shift).view(np.float32)
        x += f2 * np.uint32(np.uint32(c[i]) << shift).view(np.float32)
        x += f3 * np.uint32(np.uint32(d[i]) << shift).view(np.float32)
        out[i] = x
    if lanes.size:
        for i in range(size):
            lanes[i] += np.float64(out[i]) * np.float64(out[i])


@kernel
def add(
    out: NDArray[np.float32],
    a: NDArray[Any],
    b: NDArray[Any],
    c: NDArray[Any],
    d: NDArray[Any],
    factors: NDArray[np.float32],
    first: bool,
    squared: bool,
) -> float:
    """out ← out + Σ factors·inputs, added in the order of the inputs. Starts from 0 if `first`.

    Returns Σ out² in float64 if `squared`, else 0. Squares are taken row by row, beside the reads of the next.
    """
    f0, f1, f2, f3 = factors
    four = f0, f1, f2, f3
    lanes, total = np.zeros(ROW if squared else 0), 0.0
    whole = out.size - out.size % ROW
    for low in range(0, whole, ROW):
        add_row(out[low:], a[low:], b[low:], c[low:], d[low:], ROW, four, first, lanes)
    rest = out[whole:]
    add_row(rest, a[whole:], b[whole:], c[whole:], d[whole:], rest.size, four, first, lanes)
    for lane in lanes:
        total += lane
    return total


@intrinsic  # type: ignore[untyped-decorator]
def store_line(_: Any, target: Any, source: Any) -> Any:
    """Copies 64 bytes from the address `source` to the address `target`, a multiple of 64, past the caches.

    An ordinary store reads the line that it overwrites from memory first: with it an outer step takes half as long
    again.
    """

    def build(context: Any, builder: Any, signature: Any, addresses: Any) -> Any:
        line = ir.VectorType(ir.IntType(8), LINE).as_pointer()
        to, of = (builder.inttoptr(address, line) for address in addresses)
        stored = builder.store(builder.load(of, align=1), to, align=LINE)
        stored.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.none(types.uintp, types.uintp), build


@intrinsic  # type: ignore[untyped-decorator]
def finish_lines(_: Any) -> Any:
    """Orders all `store_line` before it ahead of what this thread does next: other threads may read the lines then."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), build


@njit(inline="always")  # type: ignore[untyped-decorator]  # with a constant size it is vectorised without checks
def step_row(
    theta: NDArray[np.float32],
    momentum: NDArray[np.float32],
    combined: NDArray[np.float32],
    size: int,
    factors: tuple[np.float32, np.float32, np.float32],
    made: tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.uint16]],
    most: NDArray[np.uint32],
) -> None:
    """The outer step of the first `size` elements, at most `ROW`. `made` gets Θ′, b′, and Θ′ as bfloat16.

    `most` keeps the largest magnitudes of Θ′, as bits.
    """
    scale, rate, mu = factors
    new_theta, new_momentum, coded = made
    for i in range(size):
        delta = scale * combined[i]
        b = mu * momentum[i] + delta
        new_momentum[i] = b
        new_theta[i] = theta[i] - rate * (mu * b + delta)
    bits = new_theta.view(np.uint32)
    for i in range(size):
        most[i] = max(most[i], np.uint32(bits[i] & MAGNITUDE))
        tie = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(1))
        coded[i] = np.uint16(np.uint32(bits[i] + HALF + tie) >> np.uint32(16))


@kernel
def nesterov(
    theta: NDArray[np.float32],
    momentum: NDArray[np.float32],
    combined: NDArray[np.float32],
    scale: float,
    rate: float,
    mu: float,
    new_theta: NDArray[np.float32],
    new_momentum: NDArray[np.float32],
    wire: NDArray[np.uint16],
) -> bool:
    """The outer step with the `combined` input c. Returns whether Θ′ is finite.

    Δ = scale·c; b′ = μ·b + Δ; Θ′ = Θ − η·(μ·b′ + Δ). `wire` gets Θ′ as bfloat16, rounded to nearest even, unless it
    is empty. Results are written past the caches, row by row beside the reads of the next: many at once would wait.
    """
    factors = np.float32(scale), np.float32(rate), np.float32(mu)
    row, velocity, coded = np.empty(ROW, np.float32), np.empty(ROW, np.float32), np.empty(ROW, np.uint16)
    made, most = (row, velocity, coded), np.zeros(ROW, np.uint32)
    line, velocity_line, coded_line = row.ctypes.data, velocity.ctypes.data, coded.ctypes.data
    to, velocity_to, coded_to = new_theta.ctypes.data, new_momentum.ctypes.data, wire.ctypes.data
    first = -coded_to % LINE // 2 if wire.size else -to % LINE // 4
    first = last = min(first, theta.size)
    if (to + 4 * first) % LINE == (velocity_to + 4 * first) % LINE == 0:
        last += (theta.size - first) // ROW * ROW
    for low in range(first, last, ROW):
        step_row(theta[low:], momentum[low:], combined[low:], ROW, factors, made, most)
        for at in range(0, 4 * ROW, LINE):
            store_line(to + 4 * low + at, line + at)
            store_line(velocity_to + 4 * low + at, velocity_line + at)
        if wire.size:
            for at in range(0, 2 * ROW, LINE):
                store_line(coded_to + 2 * low + at, coded_line + at)
    finish_lines()
    for start, stop in ((0, first), (last, theta.size)):  # what does not fill rows of whole lines
        for low in range(start, stop, ROW):
            size = min(ROW, stop - low)
            step_row(theta[low:], momentum[low:], combined[low:], size, factors, made, most)
            for i in range(size):
                new_theta[low + i] = row[i]
                new_momentum[low + i] = velocity[i]
                if wire.size:
                    wire[low + i] = coded[i]
    largest = np.uint32(0)
    for each in most:
        largest = max(largest, each)
    return bool(largest < INFINITE)

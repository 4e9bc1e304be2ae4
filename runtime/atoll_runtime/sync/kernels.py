"""Compiled loops over one contiguous range: decode and combine, sum squares, Nesterov, encode (numba).

They release the GIL and start no threads of their own. Every rounding is as written: no fastmath, no fused
multiply-add, sums in a fixed order, so a result does not depend on the machine's vector width.
"""

from __future__ import annotations

import fcntl
import hashlib
import pkgutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numba import njit
from numba.core.caching import FunctionCache
from numpy.typing import NDArray

from atoll_runtime.sync.vectors import LINE, STREAMED, combine_line, element, fence, float32, nesterov_line

Function = TypeVar("Function", bound=Callable[..., Any])


def _sources() -> bytes:
    """A digest of all that is compiled into one another."""
    found = hashlib.sha256()
    for name in ("vectors.py", "kernels.py", "turns.py"):
        found.update(pkgutil.get_data(__package__, name) or b"")
    return found.digest()


SOURCES = _sources()


class _Cache(FunctionCache):  # type: ignore[misc]
    """Compiled code on the disk; without a folder that can be written, each process compiles for itself.

    numba renames its files into place without a sync: after a loss of power they may be there cut short. It reads the
    index, then writes it, then the code that it names: of two processes at once, one would find the other's code.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        stamped = self._cache_file  # with its own file alone: a kernel that calls another would outlive it
        stamped._source_stamp = (stamped._source_stamp, SOURCES)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._alone():
            try:
                return super().load_overload(sig, target_context)
            except Exception:  # cut short in any place: it is compiled, and written, anew
                with suppress(OSError):
                    self.flush()
                return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with self._alone(), suppress(OSError):  # read-only, or full
            super().save_overload(sig, data)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process is at this kernel's files."""
        with ExitStack() as held:
            with suppress(OSError):  # read-only: nobody writes there
                place = Path(self._cache_file._index_path).with_suffix(".lock")
                place.parent.mkdir(parents=True, exist_ok=True)
                fcntl.flock(held.enter_context(place.open("a")), fcntl.LOCK_EX)
            yield


def kernel(function: Function) -> Function:
    """Compiles at the first call; keeps the code beside the source, in the user's cache or in NUMBA_CACHE_DIR."""
    compiled = njit(nogil=True)(function)
    with suppress(RuntimeError):  # none of these folders is there
        compiled._cache = _Cache(function)  # what `cache=True` does, but a merge does not fail with the disk
    result: Function = compiled
    return result


@kernel
def squares(values: NDArray[Any]) -> float:
    """Σ values² in float64, of float32 or wire elements.

    Not finite exactly when an element is not: a float32's square cannot overflow it.
    """
    lanes = np.zeros(LINE)
    whole = values.size - values.size % LINE
    for row in range(0, whole, LINE):
        for j in range(LINE):
            x = np.float64(float32(values[row + j]))
            lanes[j] += x * x
    for j in range(values.size - whole):
        x = np.float64(float32(values[whole + j]))
        lanes[j] += x * x
    total = 0.0
    for lane in lanes:
        total += lane
    return total


@kernel
def combine(
    like: NDArray[Any],
    addresses: NDArray[np.int64],
    factors: NDArray[np.float32],
    out: NDArray[np.float32],
    start: int,
    stop: int,
) -> float:
    """out[start:stop] ← Σ factors[m]·input m, summed in the order of m; gives Σ out² of the range in float64.

    like: an array of the inputs' wire dtype. addresses: int64 [M]; input m's element e lies at
    addresses[m] + e·itemsize. The caller keeps that memory, and the arrays, until this returns.
    """
    width, inputs = like.itemsize, factors.size
    table, weights, target = addresses.ctypes.data, factors.ctypes.data, out.ctypes.data
    lanes = np.zeros(LINE)
    whole = start + (stop - start) // LINE * LINE
    for e in range(start, whole, LINE):
        combine_line(like, table, e * width, weights, inputs, target + 4 * e, lanes.ctypes.data)
    for e in range(whole, stop):
        value = np.float32(0)
        for m in range(inputs):
            value += factors[m] * element(like, addresses[m] + e * width)
        out[e] = value
        lanes[e - whole] += np.float64(value) * np.float64(value)
    total = 0.0
    for lane in lanes:
        total += lane
    return total


@kernel
def nesterov(
    theta: NDArray[np.float32],
    momentum: NDArray[np.float32],
    scale: np.float32,
    rate: np.float32,
    mu: np.float32,
    new_theta: NDArray[np.float32],
    new_momentum: NDArray[np.float32],
    wire: NDArray[np.uint16],
) -> bool:
    """One range of the outer step; `new_momentum` holds the combined input c on entry. Gives whether Θ′ is finite.

    Δ = scale·c; b′ = μ·b + Δ; Θ′ = Θ − η·(μ·b′ + Δ). `wire` gets Θ′ as bfloat16, to nearest even, unless it is empty.
    Fast where new_theta and wire start the same number of elements after a multiple of 256 bytes (`Buffers`).
    """
    size = theta.size
    encode = wire.size > 0
    first = min(size, (-new_theta.ctypes.data // 4) % LINE)
    whole = first + (size - first) // LINE * LINE
    if (new_theta.ctypes.data + 4 * first) % STREAMED or (
        encode and (wire.ctypes.data + 2 * first) % STREAMED
    ):
        first = whole = size
    bits, worst = new_theta.view(np.uint32), np.zeros(LINE, np.uint32)
    at, b, c, new, code, most = (
        theta.ctypes.data,
        momentum.ctypes.data,
        new_momentum.ctypes.data,
        new_theta.ctypes.data,
        wire.ctypes.data,
        worst.ctypes.data,
    )
    for e in range(first, whole, LINE):
        nesterov_line(
            at + 4 * e,
            b + 4 * e,
            scale,
            rate,
            mu,
            new + 4 * e,
            c + 4 * e,
            code + 2 * e if encode else 0,
            most,
        )
    for part in range(2):  # before and after the whole lines
        for e in range(whole if part else 0, size if part else first):
            delta = scale * new_momentum[e]
            new_momentum[e] = mu * momentum[e] + delta
            new_theta[e] = theta[e] - rate * (mu * new_momentum[e] + delta)
            worst[0] = max(worst[0], bits[e] & np.uint32(0x7FFFFFFF))
            if encode:
                tie = (bits[e] >> np.uint32(16)) & np.uint32(1)
                wire[e] = np.uint16((bits[e] + np.uint32(0x7FFF) + tie) >> np.uint32(16))
    fence()
    return bool(worst.max() < np.uint32(0x7F800000))

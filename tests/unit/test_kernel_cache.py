"""Compiled kernels that several processes keep in one folder: each finds its own."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from atoll_runtime.sync.kernels import kernel


def largest(values: NDArray[Any]) -> float:
    """A small one."""
    found = float(values[0])
    for value in values:
        found = max(found, float(value))
    return found


def hits(values: NDArray[Any]) -> int:
    """As a new process: how many kernels come from the disk."""
    compiled: Any = kernel(largest)
    assert compiled(values) == 7
    return sum(compiled.stats.cache_hits.values())


def test_two_processes_that_keep_a_kernel_at_once_lose_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    floats, whole = np.array([3.0, 7.0]), np.array([3, 7])
    first, second = kernel(largest), kernel(largest)
    other: Any = numba.njit(largest)
    other(whole)
    ((signature, compiled),) = other.overloads.items()
    files: Any = first._cache._cache_file  # type: ignore[attr-defined]
    write = files._save_index
    saving = threading.Thread(
        target=second._cache.save_overload,  # type: ignore[attr-defined]
        args=(signature, compiled),
    )

    def late(index: Any) -> None:
        """The other process begins when this one has read the index; half a second is time to overtake it."""
        saving.start()
        saving.join(0.5)
        write(index)

    monkeypatch.setattr(files, "_save_index", late)
    assert first(floats) == 7
    saving.join(20)
    assert (hits(floats), hits(whole)) == (1, 1)

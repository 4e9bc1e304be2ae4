"""Compiled kernels on a disk that may lose power: whatever is left of their files, they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from atoll_runtime.sync.kernels import kernel


def total(values: NDArray[Any]) -> float:
    """A small one."""
    found = 0.0
    for value in values:
        found += value
    return found


def loaded() -> int:
    """As a new process: how many kernels come from the disk, all of which must work."""
    compiled: Any = kernel(total)
    assert compiled(np.ones(100)) == 100
    return sum(compiled.stats.cache_hits.values())


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0.0, 0.5])
def test_a_file_that_was_cut_short_is_compiled_and_written_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, left: float
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert (loaded(), loaded()) == (0, 1)
    (found,) = tmp_path.rglob(f"*.{suffix}")
    found.write_bytes(found.read_bytes()[: int(left * found.stat().st_size)])
    assert (loaded(), loaded()) == (0, 1)

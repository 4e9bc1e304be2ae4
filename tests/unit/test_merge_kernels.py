"""Compiled kernels are kept on a disk, which may lose power, be read-only, or be shared by processes."""

from __future__ import annotations

import os
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from commands import ended
from numpy.typing import NDArray

import atoll_runtime
from atoll_runtime.merge.kernels import kernel, nesterov


def largest(values: NDArray[Any]) -> float:
    """A small kernel."""
    found = float(values[0])
    for value in values:
        found = max(found, float(value))
    return found


def loaded(values: NDArray[Any]) -> int:
    """How many kernels a new process loads from the disk. All of them must work."""
    compiled: Any = kernel(largest)
    assert compiled(values) == 7
    return sum(compiled.stats.cache_hits.values())


FLOATS, WHOLE = np.array([3.0, 7.0]), np.array([3, 7])


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize("left", [0.0, 0.5])
def test_truncated_cache_file_is_compiled_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, left: float
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    assert (loaded(FLOATS), loaded(FLOATS)) == (0, 1)
    (found,) = tmp_path.rglob(f"*.{suffix}")
    found.write_bytes(found.read_bytes()[: int(left * found.stat().st_size)])
    assert (loaded(FLOATS), loaded(FLOATS)) == (0, 1)


def test_another_constant_is_compiled_again_though_the_source_has_the_same_size_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "source.py"
    for factor in (2, 5):
        source.write_text(f"def scaled(value):\n    return value * {factor}\n")
        os.utime(source, (1, 1))
        module: dict[str, Any] = {"__name__": "source"}
        exec(compile(source.read_text(), str(source), "exec"), module)
        assert kernel(module["scaled"])(3.0) == 3.0 * factor


def test_two_processes_that_store_a_kernel_at_once_lose_neither(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    first, second = kernel(largest), kernel(largest)
    other: Any = numba.njit(largest)
    other(WHOLE)
    ((signature, compiled),) = other.overloads.items()
    files: Any = first._cache._cache_file  # type: ignore[attr-defined]
    write = files._save_index
    saving = threading.Thread(
        target=second._cache.save_overload,  # type: ignore[attr-defined]
        args=(signature, compiled),
    )

    def late(index: Any) -> None:
        """Starts the other process when this one has read the index. Half a second is enough to overtake it."""
        saving.start()
        saving.join(0.5)
        write(index)

    monkeypatch.setattr(files, "_save_index", late)
    assert first(FLOATS) == 7
    saving.join(20)
    assert (loaded(FLOATS), loaded(WHOLE)) == (1, 1)


def test_each_process_compiles_without_a_writable_folder(tmp_path: Path) -> None:
    package = Path(atoll_runtime.__file__).parent
    with zipfile.ZipFile(tmp_path / "installed.zip", "w") as archive:
        for name in ("__init__.py", "merge/__init__.py", "merge/kernels.py"):
            archive.write(package / name, f"atoll_runtime/{name}")
    code = (
        "import numpy as np; from atoll_runtime.merge import kernels\n"
        "print(kernels.__file__, kernels.squares(np.ones(3, np.float32).view(np.uint32)))"
    )
    where = os.pathsep.join([str(tmp_path / "installed.zip"), *sys.path])
    alone = ("env", "-i", f"PATH={os.environ['PATH']}", "HOME=/proc/none", f"PYTHONPATH={where}")
    done = ended(*alone, sys.executable, "-S", "-c", code)
    assert done.returncode == 0, done.stderr
    assert "installed.zip" in done.stdout and done.stdout.endswith(" 3.0\n")


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 1000])
@pytest.mark.parametrize("start", [0, 1, 16, 32])
@pytest.mark.parametrize("coded", [True, False])
def test_outer_step_writes_every_element_of_its_range_and_none_beside_it(
    size: int, start: int, coded: bool, in_place: bool
) -> None:
    """Wherever the range begins in a line of the cache, and also where the new momentum replaces the combined input."""
    random = np.random.default_rng(size)
    theta, momentum, c = (random.standard_normal(size, np.float32) for _ in range(3))
    new_theta, new_momentum = np.full((2, size + 128), 7, np.float32)
    wire = np.full(size + 128, 7, np.uint16)
    own = slice(start, start + size)
    if in_place:
        new_momentum[own] = c
    combined, to = new_momentum[own] if in_place else c, wire[own] if coded else wire[:0]
    half, rate, mu = np.float32(0.5), np.float32(0.7), np.float32(0.9)
    assert nesterov(theta, momentum, combined, half, rate, mu, new_theta[own], new_momentum[own], to)
    b = mu * momentum + half * c
    expected = theta - rate * (mu * b + half * c)
    assert np.array_equal(new_theta[own], expected)
    assert np.array_equal(new_momentum[own], b)
    near = wire[own].astype(np.uint32) << 16
    assert not coded or np.all(np.abs(near.view(np.float32) - expected) <= np.abs(expected) / 256)
    for array in (new_theta, new_momentum, wire if coded else wire[:0]):
        assert np.all(np.delete(array, own) == 7)
    assert coded or np.all(wire == 7)


@pytest.mark.parametrize("size", [5, 64, 200])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 3e38])
def test_outer_step_reports_one_element_that_is_not_finite(size: int, bad: float) -> None:
    for at in range(size):
        ones, c = np.ones((2, size), np.float32)
        c[at], one, empty = bad, np.float32(1), np.empty(0, np.uint16)
        made = np.empty((2, size), np.float32)
        assert not nesterov(ones, ones, c, np.float32(2), one, one, *made, empty)

"""Measures how long a merge waits while it is written to the syncer's journal."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.journal import ELEMENT, Journal, check_room
from atoll_runtime.syncer.state import Version

FRAGMENTS = 24


@dataclass(frozen=True, slots=True)
class JournalFigure:
    """One line of `atoll bench journal --json`; times in milliseconds."""

    megabytes: int
    """Of all fragments."""
    begin: float
    """To write all fragments."""
    merge: float
    """To write one fragment and its record; median."""
    merge_p99: float
    merge_most: float


def measure(megabytes: int, merges: int) -> Iterator[JournalFigure]:
    """Writes merges of the fragments in turn, in the folder for temporary files. Raises `JournalError` or `Terminal`
    if there is no room, or the volume fails."""
    size = megabytes * 10**6 // ELEMENT // FRAGMENTS
    layout = build_layout([TensorInfo("w", (FRAGMENTS, size), stacked=True, embedding=False)], FRAGMENTS)
    wire = memoryview(b"")
    times = list[float]()
    with tempfile.TemporaryDirectory(prefix="atoll-bench-journal-") as folder:
        check_room(layout, LOCAL.volume(Path(folder)), 0)  # fails early, before the numbers are made
        theta, momentum = np.random.default_rng(0).standard_normal((2, size), np.float32)
        journal = Journal(Path(folder) / "journal", "bench", layout, "bench")
        first = [Version(0, theta, momentum, wire)] * FRAGMENTS
        begin = _milliseconds(lambda: journal.begin(first, {}))
        for number in range(1, merges + 1):
            new = Version(number, theta, momentum, wire)
            times.append(_milliseconds(partial(journal.merge, number % FRAGMENTS, new, {})))
        journal.close()
    middle, p99 = np.percentile(times, [50, 99])
    yield JournalFigure(megabytes, begin, float(middle), float(p99), max(times))


def _milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begun)

"""What a merge's write waits for while the syncer's journal is replaced by its next segment."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.syncer.disk import LOCAL
from atoll_runtime.syncer.journal import Journal
from atoll_runtime.syncer.room import ELEMENT, limit
from atoll_runtime.syncer.state import Version

FRAGMENTS = 24
STEPS = 16
"""Of the next segment between two merges: in a run there is time for more."""


@dataclass(frozen=True, slots=True)
class JournalFigure:
    """One line of `atoll bench journal --json`; times in milliseconds."""

    megabytes: int
    """Of a snapshot."""
    snapshot: float
    """To write it at once."""
    merge: float
    """To write a merge's record: median."""
    step: float
    """Of the next segment, for which a merge may wait: median."""
    step_p99: float
    step_most: float
    segments: int
    """That were replaced."""


def measure(megabytes: int, merges: int) -> JournalFigure:
    """Writes merges of all fragments in turns, in the folder for temporary files.

    Raises:
        JournalError, Terminal: there is no room, or the volume fails.
    """
    size = megabytes * 10**6 // ELEMENT // FRAGMENTS
    layout = build_layout([TensorInfo("w", (FRAGMENTS, size), stacked=True, embedding=False)], FRAGMENTS)
    wire = memoryview(b"")
    steps, records, replaced = list[float](), list[float](), 0
    with tempfile.TemporaryDirectory(prefix="atoll-bench-journal-") as folder:
        limit(layout, LOCAL.volume(Path(folder)), 0, 0)  # before so many numbers are made
        theta, momentum = np.random.default_rng(0).standard_normal((2, size), np.float32)
        journal = Journal(Path(folder) / "journal", "bench", layout, "bench")
        first = [Version(0, theta, momentum, wire)] * FRAGMENTS
        snapshot = _milliseconds(lambda: journal.begin(first, {}))
        for number in range(1, merges + 1):
            new = Version(number, theta, momentum, wire)
            records.append(_milliseconds(partial(journal.merge, number % FRAGMENTS, new, {})))
            for _ in range(STEPS):
                if journal.rolling:
                    steps.append(_milliseconds(journal.roll))
                    replaced += not journal.rolling
        journal.close()
    found = steps or [0.0]
    middle, p99 = np.percentile(found, [50, 99])
    return JournalFigure(
        megabytes, snapshot, float(np.median(records)), float(middle), float(p99), max(found), replaced
    )


def _milliseconds(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - begun)

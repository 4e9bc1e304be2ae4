"""Snapshots of a unit that is training: one fragment's anchor and AdamW moments at each step, for readers.

A snapshot rolls over S·P steps, so that each step copies at most one fragment and the loop never stops. Moments are
running means over more steps than that, so it does not matter that fragments are some steps apart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import ge
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.learner.proposal import NOTHING
from atoll_runtime.transport.messages import SnapshotHead

if TYPE_CHECKING:
    from jax import Array

    from atoll_runtime.learner.fragments import Fragments
    from atoll_runtime.learner.inner import Inner

BACKLOG = 4
"""Maximum number of captures that wait for one reader. At this number no more are taken for it."""
READERS = 2
"""Maximum number of readers at the same time. Each holds a few fragments in this host's memory."""


@dataclass(frozen=True, slots=True)
class Capture:
    """One host's part of one fragment, as it was between two inner steps."""

    head: SnapshotHead
    anchor: NDArray[np.float32]
    mu: NDArray[np.float32]
    nu: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one host saves of a cut. The captures' anchors are not needed and empty."""

    cut: int
    """Global step."""
    inner_step: int
    """At which the unit recorded itself for the cut; the same on all its hosts."""
    captures: tuple[Capture, ...] = ()

    @property
    def count(self) -> int:
        """Updates that the moments had seen at the end of the roll."""
        return max((capture.head.count for capture in self.captures), default=0)


class Tap:
    """The captures for one reader, in another thread.

    Args:
        least: oldest version of each fragment that is wanted.
    """

    def __init__(self, snapshots: Snapshots, least: Sequence[int]) -> None:
        self._snapshots, self._least = snapshots, tuple(least)
        self._ready = SimpleQueue[Capture | None]()

    def __iter__(self) -> Iterator[Capture]:
        """Yields captures as they come, of each fragment repeatedly, until the tap is closed."""
        while (found := self._ready.get()) is not None:
            yield found

    def close(self) -> None:
        """Takes no more captures. Call from any thread."""
        with self._snapshots.lock:
            self._snapshots.taps.discard(self)
        self._ready.put(None)

    @property
    def full(self) -> bool:
        """Whether its reader is behind."""
        return self._ready.qsize() >= BACKLOG

    def offer(self, capture: Capture) -> None:
        """Takes a capture, if it is wanted and its reader is not behind."""
        if not self.full and capture.head.version >= self._least[capture.head.number]:
            self._ready.put(capture)


class Snapshots:
    """Called by the training loop at each step; read by the saver and by those who serve peers.

    Every host of the unit captures what any of them wants, at the same step, because a capture is a collective program.
    """

    def __init__(
        self,
        bounds: Sequence[tuple[int, int]],
        targets: Sequence[int],
        save: Callable[[Snapshot], None] | None,
    ) -> None:
        """
        Args:
            bounds: this host's [start, stop) in each padded fragment; empty fragments are never captured.
            targets: versions that the unit must hold before its state is useful to others.
            save: takes a complete snapshot; must return at once. None: no snapshots are saved.
        """
        self.lock = threading.Lock()
        """Guards `taps`."""
        self.taps: set[Tap] = set()
        self.healthy = False
        """Whether the unit holds what it was asked to hold at its start, and has trained on it."""
        self._bounds = tuple(bounds)
        self._numbers = [number for number, (start, stop) in enumerate(bounds) if stop > start]
        self._targets, self._save = tuple(targets), save
        self._stepped = False
        self._rolling: Snapshot | None = None
        self._last = NOTHING
        """The fragment that was captured last."""
        self._started: tuple[int, int, int, tuple[Array, Array, Array]] | None = None

    def record(self, cut: int, inner_step: int) -> None:
        """Begins the snapshot of a cut, at this step on all hosts, unless the one before still rolls."""
        if self._rolling is None and self._save is not None:
            self._rolling = Snapshot(cut, inner_step)

    def wanted(self, versions: Sequence[int]) -> int:
        """The fragment to capture next, or `NOTHING`; `versions`: of the anchors now. Call once a step."""
        self.healthy = self._stepped and all(map(ge, versions, self._targets))
        self._stepped = True
        if self._rolling is not None:
            return self._numbers[len(self._rolling.captures)]
        with self.lock:
            if all(tap.full for tap in self.taps):
                return NOTHING
        return next((number for number in self._numbers if number > self._last), self._numbers[0])

    def capture(self, number: int, version: int, inner: Inner, fragments: Fragments) -> None:
        """Starts to copy one fragment to the host, between two steps; `version` is that of its anchor."""
        self._last = number
        self._started = number, version, inner.updates, fragments.capture(inner.moments, number)

    def collect(self) -> None:
        """Passes on the capture that was started, during the step that is under way."""
        if self._started is None:
            return
        number, version, count, flats = self._started
        self._started = None
        head = SnapshotHead(number, version, count, *self._bounds[number])
        capture = Capture(head, *(host_part(flat) for flat in flats))
        with self.lock:
            for tap in self.taps:
                tap.offer(capture)
        self._roll(capture)

    def tap(self, least: Sequence[int]) -> Tap | None:
        """A reader of every fragment at version `least` or newer; None if there are `READERS`. Call from any thread."""
        with self.lock:
            if len(self.taps) >= READERS:
                return None
            tap = Tap(self, least)
            self.taps.add(tap)
        return tap

    def close(self) -> None:
        """Call when the loop has ended: readers get no more."""
        with self.lock:
            taps = tuple(self.taps)
        for tap in taps:
            tap.close()

    def _roll(self, capture: Capture) -> None:
        """Keeps a capture for the save under way, and saves the snapshot once it is complete."""
        rolling, save = self._rolling, self._save
        if rolling is None or save is None or capture.head.number != self._numbers[len(rolling.captures)]:
            return
        kept = replace(capture, anchor=np.empty(0, np.float32))
        self._rolling = rolling = replace(rolling, captures=(*rolling.captures, kept))
        if len(rolling.captures) == len(self._numbers):
            save(rolling)
            self._rolling = None


def host_part(flat: Array) -> NDArray[Any]:
    """This host's contiguous part of a flat array over the mesh, read-only; waits for the copy."""
    shards = sorted(flat.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    parts = [np.asarray(shard.data) for shard in shards]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)

"""Writes a host's snapshots to the bucket in a thread of its own. Training does not wait for it or end if it fails."""

from __future__ import annotations

import logging
import threading
import time

from atoll_runtime.checkpoint import StoreError
from atoll_runtime.checkpoint.units import FragmentPart, UnitStore
from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.snapshot import Snapshot
from atoll_runtime.protocol.fragments import Layout

KEEP = 2
"""Complete saves of a unit that are kept at least. If the newest is damaged, there is an older one."""

log = logging.getLogger(__name__)


class Saver:
    """Writes one snapshot at a time. One that comes meanwhile or cannot be written is dropped; the next cut brings
    another one."""

    def __init__(self, store: UnitStore, unit: UnitContract, layout: Layout) -> None:
        self._store, self._unit, self._layout = store, unit, layout
        self._began = time.time()
        self._thread: threading.Thread | None = None
        self.saved = 0

    def put(self, snapshot: Snapshot) -> None:
        """Begins to write a snapshot, unless the one before is still being written."""
        if self._thread is not None and self._thread.is_alive():
            log.warning("moments at step %d are not saved: the save before is under way", snapshot.cut)
            return
        self._thread = threading.Thread(target=self._write, args=(snapshot,), name="unit-saves", daemon=True)
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Waits at most `timeout` seconds for the save under way."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _write(self, snapshot: Snapshot) -> None:
        unit, begun = self._unit, time.monotonic()
        parts = {
            capture.head.number: FragmentPart(
                capture.head.start, capture.head.stop, capture.head.version, capture.mu, capture.nu
            )
            for capture in snapshot.captures
        }
        try:
            self._store.save(unit, self._layout, snapshot.cut, snapshot.inner_step, snapshot.count, parts)
        except StoreError as error:
            log.warning("moments at step %d were not saved, training goes on: %s", snapshot.cut, error)
            return
        self.saved += 1
        log.info("moments at step %d saved in %.1f s", snapshot.cut, time.monotonic() - begun)
        if unit.host == 0:
            self._prune(snapshot.cut)

    def _prune(self, cut: int) -> None:
        """Removes older saves. A failure does not harm other saves, and the next save tries again."""
        try:
            unit = self._unit
            self._store.prune(unit.unit, KEEP, cut, unit.incarnation, self._began, time.time())
        except StoreError as error:
            log.warning("older moments were not removed, the next save tries again: %s", error)

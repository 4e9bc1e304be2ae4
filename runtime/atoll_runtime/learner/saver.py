"""Writes a host's snapshots to the bucket in a thread of its own. Training does not wait for it or end if it fails."""

from __future__ import annotations

import logging
import threading
import time

from atoll_runtime.checkpoint import StoreError
from atoll_runtime.checkpoint.manifest import HostManifest
from atoll_runtime.checkpoint.units import FragmentPart, UnitStore
from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.snapshot import Snapshot
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer.backoff import Backoff

KEEP = 2
"""Complete saves of a unit that are kept at least. If the newest is damaged, there is an older one."""
FIRST_WAIT = 1.0
LONGEST_WAIT = 60.0

log = logging.getLogger(__name__)


class Saver:
    """At most one snapshot is being written and one waits. A newer one replaces the waiting one, also one that waits
    for another attempt."""

    def __init__(self, store: UnitStore, unit: UnitContract, layout: Layout) -> None:
        self._store, self._unit, self._layout = store, unit, layout
        self._began = time.time()
        self._lock = threading.Condition()
        self._waiting: Snapshot | None = None
        self._closed = False
        self.saved = 0
        self._thread = threading.Thread(target=self._write_all, name="unit-saves", daemon=True)
        self._thread.start()

    def put(self, snapshot: Snapshot) -> None:
        """Queues a snapshot, which is written after the one before it."""
        with self._lock:
            self._waiting = snapshot
            self._lock.notify_all()

    def close(self, timeout: float) -> None:
        """Begins no more saves, and waits at most `timeout` seconds for the one under way."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        self._thread.join(timeout)

    def _write_all(self) -> None:
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting is not None or self._closed)
                snapshot, self._waiting = self._waiting, None
                if snapshot is None or self._closed:
                    return
            if self._write(snapshot):
                backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
                continue
            with self._lock:
                self._waiting = self._waiting or snapshot
                self._lock.wait_for(lambda: self._closed, backoff.seconds())

    def _write(self, snapshot: Snapshot) -> bool:
        unit, begun = self._unit, time.monotonic()
        whole = HostManifest(
            run_uid=self._store.run_uid,
            unit=unit.unit,
            incarnation=unit.incarnation,
            host=unit.host,
            hosts=unit.hosts,
            cut=snapshot.cut,
            inner_step=snapshot.inner_step,
            count=snapshot.count,
            fingerprint=self._layout.fingerprint,
            shards=self._layout.shards,
            optimizer=self._store.optimizer,
            time=0.0,
        )
        parts = {
            capture.head.number: FragmentPart(
                capture.head.start, capture.head.stop, capture.head.version, capture.mu, capture.nu
            )
            for capture in snapshot.captures
        }
        try:
            self._store.save(whole, parts)
        except StoreError as error:
            log.warning("moments at step %d were not saved, training goes on: %s", snapshot.cut, error)
            return False
        self.saved += 1
        log.info("moments at step %d saved in %.1f s", snapshot.cut, time.monotonic() - begun)
        if unit.host == 0:
            self._prune(snapshot.cut)
        return True

    def _prune(self, cut: int) -> None:
        """Removes older saves. A failure does not harm other saves, and the next save tries again."""
        try:
            unit = self._unit
            self._store.prune(unit.unit, KEEP, cut, unit.incarnation, self._began, time.time())
        except StoreError as error:
            log.warning("older moments were not removed, the next save tries again: %s", error)

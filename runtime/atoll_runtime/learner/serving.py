"""The healthy side of seeding from a peer: who gets this host's snapshots, and which ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from atoll_runtime.contract import RunContract, UnitContract, identity
from atoll_runtime.learner.snapshot import Snapshots, Tap
from atoll_runtime.sync.fragments import Layout
from atoll_runtime.transport.peer import Pace, Parts, SnapshotHead, SnapshotRequest
from atoll_runtime.transport.transport import Peer

CLIENTS = 2
"""Served at once: each holds a few fragments in this host's memory."""
BEAT = 10.0
"""Seconds after which a client that nothing is ready for hears that this unit is there."""
PATIENCE = 60.0
"""Seconds without a capture after which a client is refused: this unit has not seen the clock, or is stuck."""
PATIENT_STEPS = 4
"""Inner steps that it waits at least, however long they are: fragments are adopted and captured between two."""
LONGEST = 86_400.0
"""Seconds of one stream: no start may take longer (`startupSeconds`). A newcomer's own deadline comes first."""


class Serving:
    """A `Source` of this host's snapshots.

    Args:
        bounds: this host's [start, stop) in each padded fragment.
        patience, beat: seconds; see `PATIENCE` and `BEAT`.
    """

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        layout: Layout,
        bounds: Sequence[tuple[int, int]],
        snapshots: Snapshots,
        patience: float = PATIENCE,
        beat: float = BEAT,
    ) -> None:
        self._run, self._unit, self._layout = run, unit, layout
        self._bounds, self._snapshots = tuple(bounds), snapshots
        self._patience, self._beat = patience, beat
        self._lock = threading.Lock()
        self._clients = 0

    @property
    def clients(self) -> int:
        """Streams that are open."""
        return self._clients

    def open(self, peer: Peer, request: SnapshotRequest) -> TapStream | str:
        """See `Source`."""
        if not peer.may_be(identity(self._run.namespace, self._run.name, "unit", request.unit)):
            return f"the certificate is not that of unit {request.unit!r} of this run"
        if request.unit == self._unit.unit and request.incarnation <= self._unit.incarnation:
            return f"incarnation {request.incarnation} of {request.unit!r} asks itself"
        fragments = len(self._layout.fragments)
        if (request.fingerprint, request.shards, len(request.least)) != (
            self._layout.fingerprint,
            self._layout.shards,
            fragments,
        ):
            return f"another fragment layout: this unit has {fragments} in {self._layout.shards} shards"
        if not self._snapshots.healthy:
            return f"{self._unit.unit} has not caught up itself"
        with self._lock:
            if self._clients >= CLIENTS:
                return f"{self._unit.unit} is serving {CLIENTS} others"
            self._clients += 1
        tap = self._snapshots.tap(request.least)
        return TapStream(tap, self._bounds, self._patience, self._beat, self._leave)

    def _leave(self) -> None:
        with self._lock:
            self._clients -= 1


class TapStream:
    """A tap as a `Stream`; `leave` is called once, at its end."""

    def __init__(
        self,
        tap: Tap,
        bounds: tuple[tuple[int, int], ...],
        patience: float,
        beat: float,
        leave: Callable[[], None],
    ) -> None:
        self._tap, self._bounds, self._leave = tap, bounds, leave
        self._patience, self._beat = patience, beat
        self._lock = threading.Lock()
        self._open = True

    def __iter__(self) -> Iterator[Pace | tuple[SnapshotHead, Parts]]:
        end = time.monotonic() + LONGEST
        yield Pace(self._tap.step_seconds)
        since = time.monotonic()
        while time.monotonic() < end:
            patience = max(self._patience, PATIENT_STEPS * self._tap.step_seconds)
            try:
                capture = self._tap.take(min(self._beat, patience))
            except TimeoutError as error:
                waited = time.monotonic() - since
                if self._tap.pending and waited >= patience:
                    raise TimeoutError(f"{error}, for {patience:g} s") from error
                yield Pace(self._tap.step_seconds)
                continue
            if capture is None:
                return
            head = SnapshotHead(capture.number, capture.version, capture.count, *self._bounds[capture.number])
            yield head, (capture.anchor, capture.mu, capture.nu)
            since = time.monotonic()  # the time that the network took is not this unit's

    def close(self) -> None:
        """See `Stream`."""
        self._tap.close()
        with self._lock:
            was, self._open = self._open, False
        if was:
            self._leave()

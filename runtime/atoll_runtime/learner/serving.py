"""Serves this host's snapshots to other units, on a port of their own. Each connection has a thread."""

from __future__ import annotations

import threading

import numpy as np

from atoll_runtime.contract import RunContract, UnitContract, identity
from atoll_runtime.learner.snapshot import READERS, Snapshots, Tap
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.messages import Message
from atoll_runtime.transport.listener import Listener
from atoll_runtime.transport.messages import Declined, SnapshotRequest
from atoll_runtime.transport.stream import Stream
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer
from atoll_runtime.transport.wire import WireError


class PeerServer(Listener):
    """Raises `OSError` when the port is taken."""

    def __init__(
        self, run: RunContract, unit: UnitContract, layout: Layout, snapshots: Snapshots, tls: Tls, port: int
    ) -> None:
        self._contract, self._unit, self._layout, self._snapshots = run, unit, layout, snapshots
        super().__init__(tls, port, "snapshots")

    def serve(self, stream: Stream, peer: Peer, request: Message) -> None:
        if not isinstance(request, SnapshotRequest):
            raise WireError(f"{type(request).__name__} came instead of SnapshotRequest")
        tap = self._tap(peer, request)
        if isinstance(tap, str):
            stream.send(Declined(tap))
            return
        try:
            threading.Thread(target=_close_when_left, args=(stream, tap), daemon=True).start()
            for capture in tap:
                stream.send(capture.head)
                for part in (capture.anchor, capture.mu, capture.nu):
                    stream.write(memoryview(np.ascontiguousarray(part).view(np.uint8).data))
            stream.send(Declined(f"{self._unit.unit} has ended"))
        finally:
            tap.close()
            stream.shut()

    def _tap(self, peer: Peer, request: SnapshotRequest) -> Tap | str:
        """The captures for this peer, or why it gets none."""
        if not peer.may_be(identity(self._contract.namespace, self._contract.name, "unit", request.unit)):
            return f"the certificate is not that of unit {request.unit!r} of this run"
        if request.unit == self._unit.unit and request.incarnation <= self._unit.incarnation:
            return f"incarnation {request.incarnation} of {request.unit!r} asks itself"
        fragments = len(self._layout.fragments)
        mine = self._layout.fingerprint, self._layout.shards, fragments
        if (request.fingerprint, request.shards, len(request.least)) != mine:
            return f"another fragment layout: this unit has {fragments} in {self._layout.shards} shards"
        if not self._snapshots.healthy:
            return f"{self._unit.unit} has not caught up itself"
        tap = self._snapshots.tap(request.least)
        return f"{self._unit.unit} is serving {READERS} others" if tap is None else tap


def _close_when_left(stream: Stream, tap: Tap) -> None:
    stream.until_left()
    tap.close()

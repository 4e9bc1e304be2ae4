"""The serving side of seeding from a peer: which units get this host's snapshots, and which snapshots."""

from __future__ import annotations

from collections.abc import Sequence

from atoll_runtime.contract import RunContract, UnitContract, identity
from atoll_runtime.learner.snapshot import READERS, Snapshots, Tap
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.transport.messages import SnapshotRequest
from atoll_runtime.transport.transport import Peer


class Serving:
    """A `Source` of this host's snapshots.

    Args:
        bounds: this host's [start, stop) in each padded fragment.
    """

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        layout: Layout,
        bounds: Sequence[tuple[int, int]],
        snapshots: Snapshots,
    ) -> None:
        self._run, self._unit, self._layout = run, unit, layout
        self._bounds, self._snapshots = tuple(bounds), snapshots

    def open(self, peer: Peer, request: SnapshotRequest) -> Tap | str:
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
        tap = self._snapshots.tap(request.least, self._bounds)
        return f"{self._unit.unit} is serving {READERS} others" if tap is None else tap

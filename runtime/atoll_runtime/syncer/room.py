"""How long a journal's segment may grow on its volume."""

from __future__ import annotations

from atoll_runtime.interfaces import Volume
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer.errors import Terminal

ELEMENT = 8
"""Bytes of an element: Θ and momentum."""
GROWTH = 4
"""Times its snapshot's length at which a segment is replaced, but not before LEAST_GROWTH."""
LEAST_GROWTH = 64 << 20
"""Bytes below which no segment is replaced on a volume that is not small."""
SLACK, SLACK_SHARE = 16 << 20, 16
"""Bytes, a sixteenth of the volume at most, for the heads of records and what else lies there."""


def limit(layout: Layout, volume: Volume, tape: int, length: int) -> int:
    """Bytes beyond which a segment, now of `length`, is replaced: the next one's snapshot must fit beside it.

    Raises:
        Terminal: two snapshots and a record do not fit.
    """
    snapshot, record = ELEMENT * layout.size, ELEMENT * max(each.size for each in layout.fragments)
    kept = volume.share(tape) + min(SLACK, volume.size // SLACK_SHARE)
    needed, available = 2 * snapshot + record, volume.size - kept
    if needed > available:
        raise Terminal(
            "VolumeTooSmall",
            f"the journal of {layout.size} parameters needs {needed} bytes, for two snapshots and a record, and its "
            f"volume of {volume.size} has {available} for it, {kept} being the event tape's and others': "
            "give a new run more spec.syncer.storage, or more spec.syncer.shards",
        )
    # What else lies on the volume, such as the journal of an earlier run, is not free.
    room = min(available, volume.free + length - kept) - snapshot - record
    return min(max(LEAST_GROWTH, GROWTH * snapshot), room)

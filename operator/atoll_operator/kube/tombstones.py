"""Uids of objects that are gone, so that a late event does not bring them back."""

from __future__ import annotations

from collections import OrderedDict

LIMIT = 10_000
"""The oldest are forgotten: no event is as late as that."""


class Gone:
    """A set of uids, bounded."""

    def __init__(self) -> None:
        self._uids: OrderedDict[str, None] = OrderedDict()

    def add(self, uid: str) -> None:
        self._uids[uid] = None
        if len(self._uids) > LIMIT:
            self._uids.popitem(last=False)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

"""What each unit told of its way to the first step. Not on disk: every report brings it again."""

from __future__ import annotations

from atoll_runtime.transport.messages import Beginning


class Beginnings:
    """Of the newest incarnation of each unit that has told."""

    def __init__(self) -> None:
        self._newest: dict[str, tuple[int, Beginning]] = {}

    def told(self, unit: str, incarnation: int, host: int, beginning: Beginning | None) -> None:
        """With a report of any host; host 0 speaks for its unit."""
        known = self._newest.get(unit)
        if beginning is not None and host == 0 and (known is None or known[0] < incarnation):
            self._newest[unit] = incarnation, beginning

    def of(self, unit: str, incarnation: int) -> Beginning | None:
        """None where this incarnation has not told yet."""
        known = self._newest.get(unit)
        return known[1] if known is not None and known[0] == incarnation else None

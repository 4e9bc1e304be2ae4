"""What was last seen of deleted pods."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from atoll_operator.kube.keys import Key
from atoll_operator.plan.pods.view import PodView


class DepartedPods:
    """The last view of each host's deleted pod, of the newest gang that lost one, by unit."""

    def __init__(self, lives: Callable[[Key], bool]) -> None:
        self._lives = lives
        self._pods: dict[Key, dict[int, PodView]] = {}

    def add(self, parent: Key | None, last: PodView) -> None:
        if parent is None or parent.kind != "LearnerUnit" or not self._lives(parent):
            return
        known = self._pods.get(parent, {})
        newest = max((each.gang for each in known.values()), default=0)
        if last.gang == newest:
            other = known.get(last.host, last)
            self._pods[parent] = {**known, last.host: last if last.made_for >= other.made_for else other}
        elif last.gang > newest:
            self._pods[parent] = {last.host: last}

    def of(self, unit: Key) -> Mapping[int, PodView]:
        return self._pods.get(unit, {})

    def forget(self, unit: Key) -> None:
        self._pods.pop(unit, None)

"""What a learner's training loop runs on where no numbers are computed."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from atoll_runtime.learner.proposal import NOTHING


class NumberlessIsland:
    """As `Inner`, `Batches` and `Snapshots`, but for what a test counts itself."""

    cursor: int
    theta: Any = None

    def step(self, tokens: object, rate: float) -> float:
        return 1.0

    def take(self, timeout: float) -> Any:
        return SimpleNamespace(tokens=None, cursor=self.cursor + 1)

    def wanted(self, versions: Sequence[int]) -> int:
        return NOTHING

    def record(self, facts: object) -> None:
        pass

    def collect(self) -> None:
        pass

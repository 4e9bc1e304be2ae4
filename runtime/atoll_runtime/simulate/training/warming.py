"""Merges whose outer learning rate rises from 0: a rule that the proof tries."""

from __future__ import annotations

from atoll_runtime.contract import OuterSpec
from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.syncer.arrays import NumpyArrays


class WarmingArrays(NumpyArrays):
    """Merges whose η rises from 0 over so many global steps."""

    def __init__(self, spec: OuterSpec, layout: Layout, warmup: int) -> None:
        super().__init__(spec, layout)
        self._warmup = warmup

    def learning_rate(self, step: int) -> float:
        """See `NumpyArrays`."""
        share = min(1.0, step / self._warmup) if self._warmup else 1.0
        return share * super().learning_rate(step)

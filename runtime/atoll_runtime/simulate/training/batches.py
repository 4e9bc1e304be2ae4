"""Which examples a learner reads: its share of what all read in the same step."""

from __future__ import annotations

import numpy as np

from atoll_runtime.data import Reader, Stream
from atoll_runtime.data.prefetch import HostBatch
from atoll_runtime.simulate.training.setting import STREAMS


class Share:
    """Batches of every `learners`-th stream of STREAMS, from stream `first` on.

    Args:
        cursor: sequences that were read of these streams.
        batch: sequences of a step.
    """

    def __init__(
        self, reader: Reader, seed: int, first: int, learners: int, batch: int, cursor: int = 0
    ) -> None:
        self._reader, self._batch, self._cursor = reader, batch, cursor
        self._streams = [
            Stream(reader.examples, seed, stream, STREAMS) for stream in range(first, STREAMS, learners)
        ]

    def take(self, timeout: float = 0.0) -> HostBatch:
        """The next batch, at once."""
        width = len(self._streams)
        rows = [
            self._streams[at % width].index(at // width)
            for at in range(self._cursor, self._cursor + self._batch)
        ]
        self._cursor += self._batch
        return HostBatch(self._cursor, np.stack([self._reader.example(row) for row in rows]))

"""The data that a training reads, and the programs that are compiled once for all its learners."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import numpy as np

from atoll_runtime.contract import InnerSpec, RunContract
from atoll_runtime.data import Reader, Stream
from atoll_runtime.data.prefetch import HostBatch
from atoll_runtime.learner.audit import Evaluate, evaluation, examples_of
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import describe, initial
from atoll_runtime.model.objective import objective
from atoll_runtime.protocol.fragments import Array, build_layout
from atoll_runtime.simulate.training.setting import HELD_OUT, STREAMS, TOGETHER


class Share:
    """Batches from every `learners`-th of the STREAMS streams, beginning with stream `first`.

    Args:
        cursor: sequences already read from these streams.
        batch: sequences in a step.
    """

    def __init__(
        self, reader: Reader, seed: int, first: int, learners: int, batch: int, cursor: int = 0
    ) -> None:
        self._reader, self._batch, self._cursor = reader, batch, cursor
        self._streams = [
            Stream(reader.examples, seed, stream, STREAMS) for stream in range(first, STREAMS, learners)
        ]

    def take(self, timeout: float = 0.0) -> HostBatch:
        """Returns the next batch, without waiting."""
        width = len(self._streams)
        rows = [
            self._streams[at % width].index(at // width)
            for at in range(self._cursor, self._cursor + self._batch)
        ]
        self._cursor += self._batch
        return HostBatch(self._cursor, np.stack([self._reader.example(row) for row in rows]))


class Programs:
    """The programs of one contract and batch size. All devices of the process form one mesh."""

    def __init__(self, run: RunContract, batch: int) -> None:
        self.run = run
        self.mesh = span(jax.devices())
        self.layout = build_layout(describe(run.model), run.outer.fragments)
        self.first: dict[str, Array] = initial(run.model)
        """θ of step 0."""
        self.agreement = Agreement(self.mesh)
        self.inner = Inner(self.mesh, run.model, run.inner, self.first, batch, run.data.sequence_length)
        """Makes no steps itself; learners train twins of it."""
        self.train = Reader(run.data.uri, "train", run.data.sequence_length)
        self.audit: Evaluate | None = None
        if run.audit is not None:
            self.audit = evaluation(self.inner, self.layout, examples_of(self.train))
        exact = InnerSpec(precision="float32", remat="None")
        self._loss = jax.jit(objective(run.model, exact, self.mesh).evaluate)
        self._held_out = self._examples()

    @property
    def parameters(self) -> int:
        return sum(value.size for value in self.first.values())

    def loss(self, theta: Mapping[str, Array | jax.Array]) -> float:
        """Returns the mean held-out loss in nats per token."""
        weights = np.ones((TOGETHER, self.run.data.sequence_length), np.float32)
        losses = [self._loss(theta, {"tokens": tokens, "weights": weights}) for tokens in self._held_out]
        return float(np.mean([float(loss) for loss in losses]))

    def _examples(self) -> np.ndarray:
        """Returns the held-out examples, int32 [evaluations, TOGETHER, T+1]."""
        reader = Reader(self.run.data.uri, "heldout", self.run.data.sequence_length)
        groups = min(HELD_OUT, reader.examples) // TOGETHER
        wanted = np.linspace(0, reader.examples - 1, groups * TOGETHER).astype(int)
        rows = np.stack([reader.example(int(at)) for at in wanted])
        return rows.reshape(groups, TOGETHER, -1)

"""Measures the loss of the global model on held-out examples, which are the same at every call."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.data import Reader
from atoll_runtime.data.packing import counted, segments
from atoll_runtime.model import check, describe
from atoll_runtime.model.objective import objective

ROWS = 16
"""Examples in one call of the program; fewer if they are long."""
TOKENS_AT_ONCE = 2048
"""Most tokens in one call, but at least one example. Limits logits over a vocabulary of 256 thousand to 2 GiB."""


class WrongTensors(Exception):
    """The parameters are not those of the model; the message names them."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A mean over predicted tokens."""

    nats: float
    tokens: int


class Measure:
    """Computes the loss in float32, by a program that is compiled once.

    With `packing` Documents, as in training, a token attends to its own document only, and the first token of a
    document does not count.
    """

    def __init__(
        self,
        model: ModelSpec,
        reader: Reader,
        length: int,
        tokens: int,
        packing: Literal["Stream", "Documents"] = "Stream",
    ) -> None:
        """Uses at most `tokens` tokens of `reader`, but at least one example. `length`: tokens of an example. Raises
        `ModelError` if the model cannot be built or evaluated."""
        self._reader, self._length = reader, length
        self._names = {info.name for info in describe(model)}
        check(model, length, packing, trained=False)
        self._loss = jax.jit(objective(model, InnerSpec(precision="float32")).evaluate)
        self._separator = reader.catalogue.separator if packing == "Documents" else None
        count = min(max(1, tokens // length), reader.examples)
        self._rows = min(max(1, TOKENS_AT_ONCE // length), ROWS, count)
        # Evenly spaced, and none twice, because `count` is at most the number of examples.
        self._examples = np.linspace(0, reader.examples - 1, count).round().astype(int)

    def __call__(self, theta: Mapping[str, np.ndarray]) -> Loss:
        """The loss of parameters by flat name. Raises `WrongTensors` if they are not those of the model, `DataError`
        or `StoreError` if the examples cannot be read."""
        if odd := sorted(self._names ^ theta.keys()):
            raise WrongTensors(f"tensors differ from the model's: {', '.join(odd)}")
        nats, tokens = 0.0, 0
        held = {name: jax.device_put(value) for name, value in theta.items()}
        for batch in self._batches():
            weight = int(batch["weights"].sum())
            if weight:
                nats += weight * float(self._loss(held, batch))
                tokens += weight
        return Loss(nats / tokens if tokens else float("nan"), tokens)

    def _batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Batches of one shape; rows of weight 0 fill the last one."""
        with ThreadPoolExecutor(self._reader.readers) as pool:
            for start in range(0, len(self._examples), self._rows):
                chosen = self._examples[start : start + self._rows]
                tokens = np.zeros((self._rows, self._length + 1), np.int32)
                tokens[: len(chosen)] = list(pool.map(self._reader.example, chosen.tolist()))
                weights = np.zeros((self._rows, self._length), np.float32)
                weights[: len(chosen)] = 1
                batch = {"tokens": tokens, "weights": weights}
                if self._separator is not None:
                    batch["segments"] = segments(tokens, self._separator)
                    batch["weights"] = counted(batch)
                yield batch

"""What an export's tensors are called, and which part of Θ each one is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Shapes = Mapping[str, tuple[int, ...]]
"""Of Θ's tensors, by flat name."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of an export."""

    name: str
    shape: tuple[int, ...]
    source: str | None
    """The tensor of Θ, by flat name, that it is a part of; None: zeros, which Θ does not have."""
    at: tuple[int, ...] = ()
    """Which part: leading indices, such as layer and expert."""
    transposed: bool = False
    """Stored as [outputs, inputs], where Θ has inputs first."""
    factor: float = 1.0
    """A power of two, so that nothing is rounded."""

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def value(self, tensor: Callable[[str], np.ndarray]) -> np.ndarray:
        """Float32, of its shape; `tensor` gives one of Θ's by flat name."""
        if self.source is None:
            return np.zeros(self.shape, np.float32)
        part = np.asarray(tensor(self.source)[self.at])
        value = part.reshape(self.shape[::-1]).T if self.transposed else part
        return value if self.factor == 1 else value * np.float32(self.factor)

    def put(self, value: np.ndarray, source: np.ndarray) -> None:
        """The inverse of `value`: writes its values to where they stand in Θ."""
        part = value.T if self.transposed else value
        source[self.at] = part.reshape(source[self.at].shape).astype(np.float32) / np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class Plan:
    """A layout of one model."""

    entries: tuple[Entry, ...]
    """Those of one tensor of Θ stand together, so that each is read once."""
    config: Mapping[str, Any] | None = None
    """`config.json`, but for dtype and context; None: the layout has none."""

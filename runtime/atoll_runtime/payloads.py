"""What passes through the driver's interfaces: parts of a cut, contributions, and what can be wrong with them.

Only numpy is needed, so that the driver runs where neither the bucket's nor the merge's libraries are installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class StoreError(Exception):
    """A bucket or an object that cannot be used; the message names the URI."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The whole global model at a consistent cut."""

    step: int
    """Global step t."""
    theta: dict[str, np.ndarray]
    """Θ, float32, by flat tensor name."""
    momentum: dict[str, np.ndarray]
    """Outer momentum b, the same names and shapes; empty where it was not loaded."""
    versions: tuple[int, ...]
    """Global step of the last merge of each fragment, shard by shard."""
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `run_uid`, `model`, `fingerprint`, `machines` (of each shard), and what else the syncer wants back."""
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was passed over."""

    step: int
    reason: str
    complete: bool = True
    """It has its manifest, so it was whole once."""

    def __str__(self) -> str:
        return f"step {self.step} skipped: {self.reason}"


@dataclass(frozen=True, slots=True)
class Slice:
    """What one shard owns of a tensor: whole, or some of its layers or bands, one after the other along axis 0."""

    theta: np.ndarray
    momentum: np.ndarray
    layers: tuple[int, ...] | None = None
    """Of which layers or bands; None: the whole tensor."""
    axis: int | None = None
    """Of the whole tensor, along which bands are cut; None: these are layers."""


Region = tuple[Sequence[int], ...]
"""Which indices along each axis of a whole tensor are wanted, all along those that are not named. Those of layers and
bands may be any, others a range."""
Regions = Mapping[str, Region]
"""By tensor; one that is not named is not wanted."""


@dataclass(frozen=True, slots=True)
class Part:
    """One shard's part of a cut."""

    step: int
    shard: int
    shards: int
    tensors: dict[str, Slice]
    versions: tuple[int, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `run_uid`; `lineage`, one for each life of the shard's journal; `machine` and its `vector` clock."""


class MergeError(ValueError):
    """These outer gradients cannot be merged."""


@dataclass(frozen=True)
class Scan:
    """What one read of a part shows."""

    finite: bool
    squares: tuple[float, ...]
    """Σ v² over the part's elements of each piece of the fragment, float64."""

    @property
    def square(self) -> float:
        """Of all pieces; infinite where an element is not finite."""
        return math.fsum(self.squares) if self.finite else math.inf


@dataclass(frozen=True)
class HostPart:
    """One host's share of a unit's outer gradient, anchor − θ, in the codec of the run."""

    start: int
    """First element in the fragment. Elements beyond the fragment's end are padding."""
    body: memoryview
    scan: Scan

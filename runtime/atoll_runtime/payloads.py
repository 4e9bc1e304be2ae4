"""The data that passes through the driver's interfaces: parts of a cut, contributions, and their errors.

It needs only numpy, so that the driver runs where the libraries of bucket and merge are not installed.
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
    """Outer momentum b, with the same names and shapes. Empty if it was not loaded."""
    versions: tuple[int, ...]
    """Global step of the last merge of each fragment, shard by shard."""
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `run_uid`, `model`, `fingerprint`, `machines` (of each shard), and other facts that the syncer restores."""
    shards: int = 1


@dataclass(frozen=True, slots=True)
class Skipped:
    """A checkpoint that was skipped."""

    step: int
    reason: str
    complete: bool = True
    """It has a manifest, so it was whole at one time."""

    def __str__(self) -> str:
        return f"step {self.step} skipped: {self.reason}"


@dataclass(frozen=True, slots=True)
class Slice:
    """A shard's part of a tensor: all of it, or some of its layers or bands, stacked along axis 0."""

    theta: np.ndarray
    momentum: np.ndarray
    layers: tuple[int, ...] | None = None
    """The layers or bands that it has. None: the whole tensor."""
    axis: int | None = None
    """The axis of the whole tensor along which bands are cut. None: these are layers, or bands of layers."""
    bands: int = 1
    """Bands of each layer, along its first axis. `layers` then counts them layer by layer."""


Region = tuple[Sequence[int], ...]
"""The wanted indices along each axis of a whole tensor, ranges; all of them along axes that are not given."""
Regions = Mapping[str, Region | frozenset[int]]
"""Regions by tensor, or which layers or bands. A tensor that is not named is not wanted."""


@dataclass(frozen=True, slots=True)
class Part:
    """One shard's part of a cut."""

    step: int
    shard: int
    shards: int
    tensors: dict[str, Slice]
    versions: tuple[int, ...]
    meta: dict[str, Any] = field(default_factory=dict)
    """JSON: `run_uid`; `lineage`, a new one for each journal of the shard; `machine`."""


class MergeError(ValueError):
    """These outer gradients cannot be merged."""


@dataclass(frozen=True)
class Scan:
    """The result of scanning a part once."""

    finite: bool
    squares: tuple[float, ...]
    """Σ v² over the part's elements of each piece of the fragment, float64."""

    @property
    def square(self) -> float:
        """The sum over all pieces; infinite if an element is not finite."""
        return math.fsum(self.squares) if self.finite else math.inf


@dataclass(frozen=True)
class HostPart:
    """One host's share of a unit's outer gradient, anchor − θ, in the codec of the run."""

    start: int
    """First element in the fragment. Elements beyond the fragment's end are padding."""
    body: memoryview
    scan: Scan

"""Manifests: what each shard and each host of a unit saved, with checksums, and that all shards have saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar

import google_crc32c
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from atoll_runtime.checkpoint.bucket import Bucket, Damaged
from atoll_runtime.contract import ModelSpec, problems

CHUNK = 16 << 20
"""Bytes that one checksum call takes."""


class Record(BaseModel):
    """What is kept in the bucket as JSON. Immutable; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TensorEntry(Record):
    """A tensor, or some of its layers or bands. Each of these is cut into `parts` equal blocks along `axis`.

    Each block has a checksum: crc32c of its little-endian float32 bytes in C order.
    """

    shape: tuple[int, ...]
    """Shape of what is saved here."""
    layers: tuple[int, ...] | None = None
    """Which layers or bands of the whole tensor these are, along axis 0; None for all of it."""
    band: int | None = None
    """The axis of the whole tensor along which bands are cut; None: these are layers, or bands of layers."""
    bands: int = 1
    """Bands of each layer, along its first axis. `layers` counts them layer by layer."""
    axis: int = 0
    """An axis of what is saved here."""
    parts: int = 1
    theta: tuple[int, ...] = ()
    """Checksums of the blocks, by layer or band and then by part."""
    momentum: tuple[int, ...] = ()

    def whole(self, count: int) -> tuple[int, ...]:
        """Shape of the whole tensor, of `count` layers or bands."""
        if self.layers is None:
            return self.shape
        one = self.shape[1:]
        if self.band is None:
            return (count, *one) if self.bands == 1 else (count // self.bands, self.bands * one[0], *one[1:])
        return (*one[: self.band], count * one[self.band], *one[self.band + 1 :])

    def stacked(self, whole: np.ndarray) -> np.ndarray:
        """A view of the whole tensor with layers or bands along axis 0 and their parts along an axis before `axis`."""
        if self.band is not None:
            bands = whole.reshape(*whole.shape[: self.band], -1, *self.shape[self.band + 1 :])
            whole = np.moveaxis(bands, self.band, 0)
        seen = whole.view()
        seen.shape = self.blocked if self.layers is None else (-1, *self.blocked[1:])
        return seen

    @property
    def blocked(self) -> tuple[int, ...]:
        """The shape in which the array is stored: with an axis of the parts before `axis`."""
        rest = self.shape[self.axis :]
        inner = (rest[0] // self.parts, *rest[1:]) if rest else ()
        return (*self.shape[: self.axis], self.parts, *inner)

    @property
    def axes(self) -> tuple[int, ...]:
        """Axes of the stored array along which each index is a block."""
        return (self.axis,) if self.layers is None else (0, self.axis)

    def checksums(self, blocks: np.ndarray) -> tuple[int, ...]:
        """Checksums of all blocks or of some of them, in the shape in which they are stored."""
        first = np.moveaxis(blocks, self.axes, range(len(self.axes)))
        return tuple(checksum(first[at]) for at in np.ndindex(first.shape[: len(self.axes)]))


class PartManifest(Record):
    """`global/<step>/shard-<s>-of-<S>.json`: what one shard saved. Written after its arrays."""

    format: Literal[3] = 3
    step: int
    shard: int
    shards: int
    versions: tuple[int, ...]
    item: str
    """Orbax's folder, relative to the run's URI."""
    time: float
    """Unix seconds of the save."""
    tensors: dict[str, TensorEntry]
    meta: dict[str, Any]
    """See `atoll_runtime.payloads.Part`."""


class Manifest(Record):
    """`global/<step>/manifest.json`: every shard's part is complete. Written last."""

    format: Literal[2] = 2
    step: int
    shards: int
    versions: tuple[int, ...]
    """Version of every fragment, shard by shard."""
    time: float
    meta: dict[str, Any]


class PartEntry(Record):
    """A `units.FragmentPart` in the manifest; `mu` and `nu` are crc32c of the little-endian float32 bytes."""

    start: int
    stop: int
    version: int
    mu: int
    nu: int


class HostManifest(Record):
    """`units/<unit>/<cut>/host-<h>-of-<H>.json`: what one host saved. Written after its parts."""

    format: Literal[4] = 4
    run_uid: str
    unit: str
    incarnation: int
    host: int
    hosts: int
    cut: int
    """Global step."""
    inner_step: int
    """At which the unit recorded itself for the cut."""
    count: int
    """Updates that the moments have seen."""
    fingerprint: str
    shards: int
    optimizer: str
    """The optimiser, and those of its tensors that are saved as `mu` and `nu`; see `learner.optimiser.saved`."""
    time: float
    """Unix seconds of the save."""
    item: str
    """Folder of the arrays, relative to the run's URI."""
    parts: dict[int, PartEntry]
    """By fragment."""


R = TypeVar("R", bound=Record)


def read(kind: type[R], bucket: Bucket, path: str) -> R:
    """Reads a manifest. Raises `Damaged` if it is missing or invalid, and names the fields."""
    try:
        return kind.model_validate_json(bucket.read(path))
    except ValidationError as error:
        raise Damaged(f"{bucket.address(path)}: {problems(error)}") from error


def model_of(meta: Mapping[str, object], where: str) -> ModelSpec:
    """The model of a checkpoint. Raises `Damaged` if the manifest at `where` does not have it."""
    try:
        return ModelSpec.model_validate(meta.get("model"))
    except ValidationError as error:
        raise Damaged(f"{where}: {problems(error, 'meta', 'model')}") from error


def checksum(tensor: np.ndarray) -> int:
    """crc32c of a tensor's bytes, without copying all of them at once."""
    raw = np.ascontiguousarray(tensor).reshape(-1).view(np.uint8)
    total = google_crc32c.value(b"")
    for start in range(0, raw.size, CHUNK):
        total = google_crc32c.extend(total, raw[start : start + CHUNK].tobytes())
    return int(total)

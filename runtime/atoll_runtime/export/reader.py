"""Reads Θ of a checkpoint and of an export, and compares the two bit by bit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np
from pydantic import BaseModel, ConfigDict, Json, ValidationError
from safetensors import SafetensorError, safe_open

from atoll_runtime.checkpoint import Bucket, layout, manifest, parts
from atoll_runtime.contract import ModelSpec, problems
from atoll_runtime.export.layouts import LAYOUTS, Entry, ExportError
from atoll_runtime.model import resolve
from atoll_runtime.model.parameters import shapes


class Theta:
    """Θ of one complete checkpoint, read tensor by tensor, because `GlobalStore.load` holds the whole model in memory.

    Reads whole tensors from all shards and verifies their checksums. Caches the last one.
    """

    def __init__(self, uri: str, step: int | None = None) -> None:
        """Reads the manifests of a checkpoint. `step=None`: the newest complete one.

        Raises:
            ExportError: there is no such checkpoint.
            StoreError: the bucket does not answer, or a manifest is damaged.
        """
        self._bucket = Bucket(uri)
        steps = layout.complete_steps(self._bucket.list(layout.GLOBAL))
        if not steps:
            raise ExportError(f"{uri}: no complete checkpoint here; a run's spec.checkpoint.uri is wanted")
        if step is not None and step not in steps:
            raise ExportError(f"step {step}: {uri} has {', '.join(map(str, steps))}")
        self.step = steps[0] if step is None else step
        name = layout.manifest(self.step)
        whole = manifest.read(manifest.Manifest, self._bucket, name)
        self._parts = parts.find_all(self._bucket, self.step, whole.shards)
        self.model = manifest.model_of(whole.meta, self._bucket.address(name))
        manifests = [whole.model_dump_json(), *(part.model_dump_json() for part in self._parts)]
        self.digest = hashlib.sha256("".join(manifests).encode()).hexdigest()
        """Of the manifests, which hold a checksum of every tensor."""
        depths = parts.depths(self._parts)
        self.shapes = {
            name: entry.whole(depths.get(name, 0))
            for part in self._parts
            for name, entry in part.tensors.items()
        }
        """Shape of each whole tensor by flat name."""
        self._held: tuple[str, np.ndarray] | None = None

    def tensor(self, name: str) -> np.ndarray:
        """A float32 tensor. Raises `StoreError` if it is unreadable or its checksum is wrong."""
        if self._held is None or self._held[0] != name:
            self._held = None  # before the next one is read, so that two are never held
            found = parts.tensors(self._bucket, self._parts, ("theta",), {name: ()})
            self._held = name, found["theta"][name]
        return self._held[1]


SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PREFIX = "atoll."
DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}
"""Data types by their names in options. Values in bf16 are rounded to nearest, ties to even."""


class Facts(BaseModel):
    """Origin and format of an export, in the header of each file. The keys begin with PREFIX."""

    model_config = ConfigDict(frozen=True)

    version: str
    """Version of Atoll."""
    step: int
    """Global step of the checkpoint."""
    model: Json[ModelSpec]
    checkpoint: str
    """`sha256:…` of the checkpoint's manifests."""
    layout: Literal["atoll", "llama", "qwen2-moe"]
    dtype: Literal["float32", "bf16"]


@dataclass(frozen=True, slots=True)
class Export:
    """An export on disk. Tensors are read on demand."""

    facts: Facts
    files: Mapping[str, safe_open]
    """Files by tensor name."""

    @classmethod
    def open(cls, path: Path) -> Export:
        """Opens a folder. Raises `ExportError` if a file is missing or truncated, or another program wrote it."""
        paths = _paths(path)
        opened = []
        for each in paths:
            try:
                opened.append(safe_open(each, "np"))
            except (OSError, SafetensorError) as error:
                raise ExportError(f"{each}: not a whole safetensors file: {error}") from error
        files = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  # no mapping
        header = (opened[0].metadata() or {}).items()
        try:
            facts = Facts.model_validate({key.removeprefix(PREFIX): value for key, value in header})
        except ValidationError as error:
            wrong = problems(error, "atoll")
            raise ExportError(f"{paths[0]}: not written by atoll export: {wrong}") from error
        return cls(facts, files)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, without reading its values."""
        return tuple(self.files[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, in the dtype of the file."""
        value: np.ndarray = self.files[name].get_tensor(name)
        return value


def read_back(path: Path) -> dict[str, np.ndarray]:
    """Reads Θ by flat name, float32, from an export in any layout. bf16 values stay rounded. Raises `ExportError` as
    `Export.open`, and if a tensor is missing or has another shape than the model's."""
    export = Export.open(path)
    facts = export.facts
    if facts.model.task is not None:  # only its own code knows the shapes
        known = {name: export.shape(name) for name in export.files}
    else:
        known = shapes(resolve(facts.model))
    theta = {name: np.empty(shape, np.float32) for name, shape in known.items()}
    for entry in LAYOUTS[facts.layout](facts.model, known).entries:
        if entry.name not in export.files or export.shape(entry.name) != entry.shape:
            raise ExportError(f"{path}: {entry.name} of shape {entry.shape} is missing")
        if entry.source is not None:
            entry.put(export.tensor(entry.name), theta[entry.source])
    return theta


def compare(theta: Theta, export: Export) -> str | None:
    """The first tensor that differs from the one that an export of this checkpoint would have, and how; None if all
    bits are equal.

    Raises:
        ExportError: the checkpoint's model has no such layout.
        StoreError: the checkpoint cannot be read.
    """
    entries = {entry.name: entry for entry in LAYOUTS[export.facts.layout](theta.model, theta.shapes).entries}
    for name in export.files:
        if name not in entries:
            return f"{name}: the checkpoint's model has no such tensor"
    for name, entry in entries.items():
        if difference := _difference(entry, theta, export):
            return f"{name}: {difference}"
    return None


def _difference(entry: Entry, theta: Theta, export: Export) -> str:
    if entry.name not in export.files:
        return "is missing"
    if export.shape(entry.name) != entry.shape:
        return f"has shape {export.shape(entry.name)}, not {entry.shape}"
    found, dtype = export.tensor(entry.name), DTYPES[export.facts.dtype]
    if found.dtype != dtype:
        return f"is {found.dtype}, where the file says {export.facts.dtype}"
    wanted = np.asarray(entry.value(theta.tensor), dtype, order="C").reshape(-1)
    bits = f"u{dtype.itemsize}"
    unequal = np.flatnonzero(found.reshape(-1).view(bits) != wanted.view(bits))
    if not unequal.size:
        return ""
    at = int(unequal[0])
    where = tuple(int(i) for i in np.unravel_index(at, entry.shape))
    return f"is {found.reshape(-1)[at]} at {where}, where the checkpoint has {wanted[at]}"


def _paths(path: Path) -> list[Path]:
    """The files of tensors."""
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    try:
        index = json.loads((path / INDEX).read_bytes())
        return [path / name for name in sorted(set(index["weight_map"].values())) or [SINGLE]]
    except OSError as error:
        raise ExportError(f"{path}: no export here: neither {SINGLE} nor {INDEX}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ExportError(f"{path / INDEX}: not an index: {error}") from error

"""Reads an export back, and compares it with a checkpoint bit by bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

from atoll_runtime.export.entries import Entry
from atoll_runtime.export.errors import ExportError
from atoll_runtime.export.facts import Facts
from atoll_runtime.export.files import CHUNK, DTYPES, open_file, pieces
from atoll_runtime.export.layouts import LAYOUTS
from atoll_runtime.export.theta import Theta
from atoll_runtime.export.writer import INDEX, SINGLE
from atoll_runtime.model import resolve
from atoll_runtime.model.parameters import shapes


@dataclass(frozen=True, slots=True)
class Export:
    """An export on disk; tensors are read when they are asked for."""

    facts: Facts
    files: Mapping[str, safe_open]
    """By tensor."""

    @classmethod
    def open(cls, path: Path) -> Export:
        """Opens a file, or a folder of them.

        Raises:
            ExportError: there is none, a file of it is missing or cut short, or another program wrote it.
        """
        opened = {each: open_file(each) for each in _paths(path)}
        files = {name: file for file in opened.values() for name in file.keys()}  # noqa: SIM118  # no mapping
        first, file = next(iter(opened.items()))
        return cls(Facts.of_header(file.metadata() or {}, first), files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of one tensor, without its values."""
        return tuple(self.files[name].get_slice(name).get_shape())

    def tensor(self, name: str) -> np.ndarray:
        """One tensor, in the dtype of the file."""
        value: np.ndarray = self.files[name].get_tensor(name)
        return value


@dataclass(frozen=True, slots=True)
class Comparison:
    """An export beside a checkpoint."""

    tensors: int
    """Of the export."""
    difference: str | None
    """The first tensor that is not what the checkpoint says, and how; None: every bit agrees."""


def read_back(path: Path) -> dict[str, np.ndarray]:
    """Θ by flat name, float32, from an export in any layout; what bf16 rounded off does not come back.

    Raises:
        ExportError: see `Export.open`; a tensor is missing, or has another shape than the model's.
    """
    export = Export.open(path)
    facts = export.facts
    if facts.model.task is not None:  # whose shapes its own code alone could tell
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


def compare(theta: Theta, export: Export) -> Comparison:
    """Compares every tensor with what the export of this checkpoint would be.

    Raises:
        ExportError: the checkpoint's model has no such layout.
        StoreError: the checkpoint cannot be read.
    """
    entries = LAYOUTS[export.facts.layout](theta.model, theta.shapes).entries
    wanted = {entry.name for entry in entries}
    count = len(export.files)
    for name in export.files:
        if name not in wanted:
            return Comparison(count, f"{name}: the checkpoint's model has no such tensor")
    for entry in entries:
        difference = _differs(entry, theta, export)
        if difference is not None:
            return Comparison(count, f"{entry.name}: {difference}")
    return Comparison(count, None)


def _differs(entry: Entry, theta: Theta, export: Export) -> str | None:
    if entry.name not in export.files:
        return "is missing"
    if export.shape(entry.name) != entry.shape:
        return f"has shape {export.shape(entry.name)}, not {entry.shape}"
    found = export.tensor(entry.name)
    if found.dtype != DTYPES[export.facts.dtype][1]:
        return f"is {found.dtype}, where the file says {export.facts.dtype}"
    for number, piece in enumerate(pieces(entry.value(theta.tensor), export.facts.dtype)):
        start = number * CHUNK
        own = found.reshape(-1)[start : start + piece.size]
        bits = f"u{piece.dtype.itemsize}"
        unequal = np.flatnonzero(own.view(bits) != piece.view(bits))
        if unequal.size:
            at = int(unequal[0])
            where = tuple(int(i) for i in np.unravel_index(start + at, entry.shape))
            return f"is {own[at]} at {where}, where the checkpoint has {piece[at]}"
    return None


def _paths(path: Path) -> list[Path]:
    """The files of tensors."""
    if path.is_file():
        return [path]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    try:
        index = json.loads((path / INDEX).read_bytes())
        names = sorted(set(index["weight_map"].values()))
        return [path / name for name in names or [SINGLE]]
    except OSError as error:
        raise ExportError(f"{path}: no export here: neither {SINGLE} nor {INDEX}") from error
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ExportError(f"{path / INDEX}: not an index: {error}") from error

"""How the model is cut into fragments: balanced, deterministic, the same on every host (numpy only)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class LayoutError(ValueError):
    """The model cannot be cut as asked; the message names the field."""


@dataclass(frozen=True)
class TensorInfo:
    """A parameter tensor by its flat name, such as `layers/attention/wq`."""

    name: str
    shape: tuple[int, ...]
    stacked: bool
    """Axis 0 is the layer axis: the tensor is cut by layer, else the balance is lost."""
    embedding: bool
    """Merged by the direct mean, not by RDA."""


@dataclass(frozen=True)
class Piece:
    """A tensor, or one layer of a stacked one. Norms are taken per piece."""

    tensor: str
    index: int | None
    """Layer of a stacked tensor; None for a whole one."""
    shape: tuple[int, ...]
    size: int
    embedding: bool


@dataclass(frozen=True)
class Fragment:
    """Pieces that are merged together, laid end to end in one flat vector."""

    id: int
    pieces: tuple[Piece, ...]
    size: int
    """Elements."""
    offsets: tuple[int, ...]
    """First element of each piece."""


@dataclass(frozen=True)
class Layout:
    """Every fragment of a model."""

    fragments: tuple[Fragment, ...]
    fingerprint: str
    """sha256 of the canonical layout; both ends must hold the same."""
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def size(self) -> int:
        """Elements of the whole model."""
        return sum(fragment.size for fragment in self.fragments)

    def flatten(self, tensors: Mapping[str, NDArray[Any]], p: int) -> Array:
        """Fragment `p` of `tensors` as one float32 vector."""
        fragment = self.fragments[p]
        flat = np.empty(fragment.size, np.float32)
        for piece, start in zip(fragment.pieces, fragment.offsets, strict=True):
            source = tensors[piece.tensor]
            flat[start : start + piece.size] = (
                source if piece.index is None else source[piece.index]
            ).ravel()
        return flat

    def unflatten(self, p: int, flat: NDArray[Any], into: dict[str, Array]) -> None:
        """Writes fragment `p` into `into`; tensors that are not there yet are made (float32, zero)."""
        fragment = self.fragments[p]
        for piece, start in zip(fragment.pieces, fragment.offsets, strict=True):
            target = into.get(piece.tensor)
            if target is None:
                target = into[piece.tensor] = np.zeros(self.shapes[piece.tensor], np.float32)
            values = flat[start : start + piece.size].reshape(piece.shape)
            if piece.index is None:
                target[...] = values
            else:
                target[piece.index] = values


def build_layout(tensors: Sequence[TensorInfo], fragments: int) -> Layout:
    """Largest piece first into the smallest fragment (LPT): the peak is at most 4/3 of the optimum.

    Raises:
        LayoutError: fewer pieces than fragments, or a tensor that is named twice.
    """
    shapes = {tensor.name: tuple(tensor.shape) for tensor in tensors}
    if len(shapes) != len(tensors):
        raise LayoutError("model: a tensor name occurs twice")
    pieces = [piece for tensor in tensors for piece in cut(tensor)]
    if not 1 <= fragments <= len(pieces):
        raise LayoutError(
            f"outer.fragments: {fragments} does not fit this model, which has {len(pieces)} pieces "
            f"(one for each tensor, one for each layer of a stacked tensor): give 1 to {len(pieces)}"
        )
    bins: list[list[Piece]] = [[] for _ in range(fragments)]
    loads = [0] * fragments
    for piece in sorted(pieces, key=lambda piece: (-piece.size, order(piece))):
        p = loads.index(min(loads))
        bins[p].append(piece)
        loads[p] += piece.size
    cuts = tuple(lay(p, content) for p, content in enumerate(bins))
    return Layout(cuts, fingerprint(cuts), shapes)


def cut(tensor: TensorInfo) -> list[Piece]:
    """A stacked tensor by layer, another one whole."""
    shape = tuple(tensor.shape)
    if not tensor.stacked:
        return [Piece(tensor.name, None, shape, math.prod(shape), tensor.embedding)]
    rest = shape[1:]
    return [Piece(tensor.name, i, rest, math.prod(rest), tensor.embedding) for i in range(shape[0])]


def order(piece: Piece) -> tuple[str, int]:
    """Sorts by name, then layer."""
    return piece.tensor, -1 if piece.index is None else piece.index


def lay(p: int, content: Sequence[Piece]) -> Fragment:
    """Pieces in the order of their names, end to end."""
    pieces = tuple(sorted(content, key=order))
    offsets, size = [], 0
    for piece in pieces:
        offsets.append(size)
        size += piece.size
    return Fragment(p, pieces, size, tuple(offsets))


def fingerprint(fragments: Sequence[Fragment]) -> str:
    """sha256 over the canonical JSON of all pieces in their places."""
    canonical = [
        [[piece.tensor, piece.index, list(piece.shape), piece.embedding] for piece in fragment.pieces]
        for fragment in fragments
    ]
    return hashlib.sha256(json.dumps(canonical, separators=(",", ":")).encode()).hexdigest()


def part_bounds(size: int, parts: int) -> list[tuple[int, int]]:
    """Even [start, stop) of `size` elements over `parts` devices; the last stop is the padded size."""
    if parts < 1:
        raise LayoutError(f"parts: {parts} must be at least 1")
    share = -(-size // parts)
    return [(i * share, (i + 1) * share) for i in range(parts)]

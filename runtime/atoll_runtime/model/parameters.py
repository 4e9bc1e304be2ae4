"""The decoder's parameters by flat name: axes, shapes, initial values, and conversion to and from a nested tree.

Uses only numpy, because the syncer makes Θ of step 0 with it and has no accelerator.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll_runtime.contract import Dimensions
from atoll_runtime.protocol.fragments import TensorInfo

Axes = Mapping[str, tuple[str, ...]]
"""By flat name, the logical axis of each dimension of a tensor."""

AXES: dict[str, tuple[str, ...]] = {
    "embedding/table": ("vocabulary", "width"),
    "layers/attention/norm": ("layers", "scale"),
    "layers/attention/wq": ("layers", "width", "heads", "head"),
    "layers/attention/wk": ("layers", "width", "kv_heads", "head"),
    "layers/attention/wv": ("layers", "width", "kv_heads", "head"),
    "layers/attention/wo": ("layers", "heads", "head", "width"),
    "layers/mlp/norm": ("layers", "scale"),
    "layers/mlp/gate": ("layers", "width", "hidden"),
    "layers/mlp/up": ("layers", "width", "hidden"),
    "layers/mlp/down": ("layers", "hidden", "width"),
    "layers/experts/router": ("layers", "width", "choices"),
    "layers/experts/gate": ("layers", "experts", "width", "expert_hidden"),
    "layers/experts/up": ("layers", "experts", "width", "expert_hidden"),
    "layers/experts/down": ("layers", "experts", "expert_hidden", "width"),
    "final/norm": ("scale",),
    "head/table": ("width", "vocabulary"),
}
"""Every tensor's logical axes. They determine its shape, sharding, initial scale and partition into fragments."""

EMBEDDING_SCALE = 0.02


def shapes(size: Dimensions) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of a model of this size."""
    others = {"scale": size.width, "head": size.width // size.heads, "choices": size.experts}
    lengths: dict[str, int] = size.model_dump() | others
    absent = tuple(["head/"] * size.tied + ["layers/experts/"] * (size.experts == 0))
    return {
        name: tuple(lengths[axis] for axis in axes)
        for name, axes in AXES.items()
        if not name.startswith(absent)
    }


def describe(axes: Axes, shapes: Mapping[str, tuple[int, ...]]) -> list[TensorInfo]:
    """Tensors as the protocol partitions them: by layer; embedding and head are merged by the direct mean."""
    return [
        TensorInfo(name, shape, stacked=axes[name][:1] == ("layers",), embedding="vocabulary" in axes[name])
        for name, shape in shapes.items()
    ]


def initial(size: Dimensions, seed: int) -> dict[str, np.ndarray]:
    """Initial values, float32. They are the same for a seed on every machine and in any order of tensors."""
    return {name: _first(name, shape, size, seed) for name, shape in shapes(size).items()}


def _first(name: str, shape: tuple[int, ...], size: Dimensions, seed: int) -> np.ndarray:
    """Normal with variance 1/fan-in. Tensors that write to the residual stream are scaled down by depth."""
    if name.endswith("/norm"):
        return np.ones(shape, np.float32)
    values = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape, np.float32)
    if name == "embedding/table":
        return values * np.float32(EMBEDDING_SCALE)
    if AXES[name][-1] == "width":
        inputs = [axis not in ("layers", "experts", "width") for axis in AXES[name]]
        fan_in = np.prod(shape, where=inputs)
        return values * np.float32((fan_in * 2 * size.layers) ** -0.5)
    return values * np.float32(size.width**-0.5)


def tree(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dict from flat names: "layers/attention/wq" → tree["layers"]["attention"]["wq"]."""
    nested: dict[str, Any] = {}
    for name, value in tensors.items():
        *path, leaf = name.split("/")
        node = nested
        for key in path:
            node = node.setdefault(key, {})
        node[leaf] = value
    return nested


def flat(nested: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flat names from a nested dict; the inverse of `tree`."""
    found: dict[str, Any] = {}
    for key, value in nested.items():
        found |= flat(value, f"{prefix}{key}/") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found

"""Sizes by name, and the checks that a size must pass."""

from __future__ import annotations

from atoll_runtime.contract import PRESETS, Dimensions, ModelSpec


class ModelError(ValueError):
    """A model that cannot be built; the message names the field."""


SIZES: dict[str, Dimensions] = {
    "250k": Dimensions(layers=5, width=64, heads=4, kv_heads=2, hidden=192),
    "1m": Dimensions(layers=5, width=128, heads=4, kv_heads=2, hidden=384),  # the demo's
    "10m": Dimensions(layers=6, width=384, heads=6, kv_heads=2, hidden=1024),
    "125m": Dimensions(layers=20, width=768, heads=12, kv_heads=4, hidden=2048),
    "1b": Dimensions(layers=22, width=2048, heads=16, kv_heads=4, hidden=5632),
}
"""Presets, byte vocabulary, head tied to the embedding. The names carry the parameters to within 15 %."""

assert tuple(SIZES) == PRESETS


def resolve(spec: ModelSpec) -> Dimensions:
    """The dimensions that `spec` means.

    Raises:
        ModelError: neither or both of preset and dimensions, an unknown preset, heads that do not divide.
    """
    if (spec.preset is None) == (spec.dimensions is None):
        raise ModelError("model: give either preset or dimensions, and not both")
    if spec.preset is not None:
        if spec.preset not in SIZES:
            raise ModelError(f"model.preset: {spec.preset!r} is unknown; there are {', '.join(SIZES)}")
        return SIZES[spec.preset]
    assert spec.dimensions is not None
    size = spec.dimensions
    if size.width % size.heads or (size.width // size.heads) % 2:
        raise ModelError(
            f"model.dimensions.width: {size.width} must be an even multiple of heads ({size.heads})"
        )
    if size.heads % size.kv_heads:
        raise ModelError(f"model.dimensions.kvHeads: {size.kv_heads} must divide heads ({size.heads})")
    return size

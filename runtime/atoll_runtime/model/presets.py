"""Sizes by name, and the checks that a size must pass."""

from __future__ import annotations

from atoll_runtime.contract import PRESETS, Dimensions, MeshSpec, ModelSpec


class ModelError(ValueError):
    """A model that cannot be built; the message names the field."""


SIZES: dict[str, Dimensions] = {
    "250k": Dimensions(layers=5, width=64, heads=4, kv_heads=2, hidden=192),
    "1m": Dimensions(layers=5, width=128, heads=4, kv_heads=2, hidden=384),  # the demo's
    "10m": Dimensions(layers=6, width=384, heads=6, kv_heads=2, hidden=1024),
    "35m": Dimensions(layers=12, width=512, heads=8, kv_heads=2, hidden=1536),
    "125m": Dimensions(layers=20, width=768, heads=12, kv_heads=4, hidden=2048),
    "350m": Dimensions(layers=32, width=1024, heads=8, kv_heads=4, hidden=2560),
    "1b": Dimensions(layers=22, width=2048, heads=16, kv_heads=4, hidden=5632),
    "2b": Dimensions(layers=24, width=2560, heads=20, kv_heads=4, hidden=8192),
    "5b": Dimensions(layers=32, width=3584, heads=28, kv_heads=4, hidden=11264),
    "9b": Dimensions(layers=40, width=4096, heads=32, kv_heads=8, hidden=14336),
    "12b": Dimensions(layers=40, width=5120, heads=40, kv_heads=8, hidden=15360),
    "moe-1m": Dimensions(layers=4, width=96, heads=4, kv_heads=2, hidden=192, experts=8, expert_hidden=64),
    "moe-10m": Dimensions(layers=8, width=256, heads=4, kv_heads=2, hidden=256, experts=8, expert_hidden=128),
    "moe-125m": Dimensions(
        layers=16, width=512, heads=8, kv_heads=4, hidden=512, experts=16, expert_hidden=256
    ),
    "moe-1b": Dimensions(
        layers=16, width=1024, heads=8, kv_heads=4, hidden=2048, experts=32, expert_hidden=512
    ),
    "moe-12b": Dimensions(
        layers=24, width=2048, heads=16, kv_heads=4, hidden=4096, experts=64, expert_hidden=1152
    ),
}
"""Presets, byte vocabulary, head tied to the embedding. The names carry all parameters, to within 15 %.

From 350m on every width is a multiple of 256 and heads have 128 elements, as a TPU's matrix unit wants them.
"""

assert tuple(SIZES) == PRESETS


def resolve(spec: ModelSpec) -> Dimensions:
    """The dimensions of a decoder that `spec` means.

    Raises:
        ModelError: not one of preset, dimensions and task, a task, an unknown preset, sizes that do not fit.
    """
    if [spec.preset, spec.dimensions, spec.task].count(None) != 2:
        raise ModelError("model: give one of preset, dimensions and task, and no more")
    if spec.task is not None:
        raise ModelError(f"model.task: {spec.task!r} has no dimensions")
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
    if bool(size.experts) != bool(size.expert_hidden):
        raise ModelError(
            f"model.dimensions.expertHidden: {size.expert_hidden} with {size.experts} experts: both or none"
        )
    if size.experts and size.experts_per_token > size.experts:
        raise ModelError(
            f"model.dimensions.expertsPerToken: {size.experts_per_token} must be at most experts ({size.experts})"
        )
    return size


def fits(size: Dimensions, mesh: MeshSpec) -> None:
    """Raises `ModelError` where a part of the model cannot be split as `mesh` says."""
    split = {"heads": size.heads, "kvHeads": size.kv_heads, "hidden": size.hidden}
    if size.experts:
        split["expertHidden"] = size.expert_hidden
    for field, length in split.items():
        if length % mesh.tensor:
            raise ModelError(
                f"inner.mesh.tensor: {mesh.tensor} must divide model.dimensions.{field} ({length})"
            )
    if mesh.expert > 1 and (size.experts == 0 or size.experts % mesh.expert):
        raise ModelError(
            f"inner.mesh.expert: {mesh.expert} must divide model.dimensions.experts ({size.experts})"
            + ("" if size.experts else ": a dense model takes 1")
        )

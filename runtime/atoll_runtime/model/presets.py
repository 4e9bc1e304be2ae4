"""The size of a run's model, and the checks that it must pass."""

from __future__ import annotations

from atoll_runtime.contract import SIZES, Dimensions, MeshSpec, ModelSpec


class ModelError(ValueError):
    """A model that cannot be built; the message names the field."""


def resolve(spec: ModelSpec) -> Dimensions:
    """The dimensions of the decoder that `spec` describes.

    Raises:
        ModelError: `spec` has not exactly one of preset, dimensions and task; it has a task or an unknown preset; or
            the sizes do not fit.
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
    if size.width % (2 * size.heads):
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
    """Raises `ModelError` if a part of the model cannot be split as `mesh` says."""
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

"""The size of a run's model, and the checks that it must pass."""

from __future__ import annotations

from atoll_runtime.contract import SIZES, Dimensions, MeshSpec, ModelSpec


class ModelError(ValueError):
    """A model that cannot be built; the message names the field."""


def resolve(spec: ModelSpec) -> Dimensions:
    """The dimensions of the decoder that `spec` describes. The schema's rules say which of them fit together.

    Raises:
        ModelError: `spec` has a task, or a preset that this version does not know.
    """
    if spec.task is not None:
        raise ModelError(f"model.task: {spec.task!r} has no dimensions")
    if spec.dimensions is not None:
        return spec.dimensions
    if spec.preset not in SIZES:
        raise ModelError(f"model.preset: {spec.preset!r} is unknown; there are {', '.join(SIZES)}")
    return SIZES[spec.preset]


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

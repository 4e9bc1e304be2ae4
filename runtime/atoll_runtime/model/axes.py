"""Where each logical axis lies on a unit's mesh, by the rules: shardings of parameters, activations and batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jax import Array
from jax.lax import with_sharding_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atoll_runtime.model.rules import MESH, ROWS, RULES


def partition(
    mesh: Mesh, axes: Sequence[str], shape: Sequence[int], along: Collection[str] = MESH
) -> PartitionSpec:
    """How a tensor of these logical axes is split, by the rules for the mesh axes in `along` alone."""
    split: list[list[str]] = [[] for _ in shape]
    parts = [1 for _ in shape]
    for logical, physical in RULES:
        if physical not in along or any(physical in names for names in split):
            continue
        for at, axis in enumerate(axes):
            if axis == logical and shape[at] % (parts[at] * mesh.shape[physical]) == 0:
                split[at].append(physical)
                parts[at] *= mesh.shape[physical]
                break
    return PartitionSpec(*(tuple(names) or None for names in split))


def placement(mesh: Mesh, axes: Sequence[str], shape: Sequence[int]) -> NamedSharding:
    """Sharding of a parameter."""
    return NamedSharding(mesh, partition(mesh, axes, shape))


def share(mesh: Mesh, axes: Sequence[str], shape: Sequence[int]) -> tuple[range, ...]:
    """Along each dimension, what this host's chips hold of a parameter."""
    found = placement(mesh, axes, shape).addressable_devices_indices_map(tuple(shape)).values()
    spans = [[one.indices(length) for one, length in zip(index or (), shape, strict=True)] for index in found]
    return tuple(
        range(min(start for start, _, _ in along), max(stop for _, stop, _ in along))
        for along in zip(*spans, strict=True)
    )


def constrain(mesh: Mesh | None, x: Array, axes: Sequence[str], along: Collection[str] = MESH) -> Array:
    """`x` where the rules put it; without a mesh, as it is."""
    if mesh is None:
        return x
    placed: Array = with_sharding_constraint(x, NamedSharding(mesh, partition(mesh, axes, x.shape, along)))
    return placed


def over_rows(mesh: Mesh) -> NamedSharding:
    """Axis 0 as a batch's rows."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def over_devices(mesh: Mesh) -> NamedSharding:
    """Axis 0 split evenly over all devices: flat fragments."""
    return NamedSharding(mesh, PartitionSpec(MESH))


def everywhere(mesh: Mesh) -> NamedSharding:
    """The whole value on each device."""
    return NamedSharding(mesh, PartitionSpec())

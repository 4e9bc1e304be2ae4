"""Places logical axes on a unit's mesh, by the rules: shardings of parameters, activations and batches."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jax import Array
from jax.lax import with_sharding_constraint
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atoll_runtime.model.rules import MESH, ROWS, RULES


def partition(
    mesh: Mesh, axes: Sequence[str], shape: Sequence[int], along: Collection[str] = MESH
) -> PartitionSpec:
    """How a tensor with these logical axes is split, by the rules for the mesh axes in `along` only."""
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
    """The range of a parameter that this host's chips hold, along each dimension."""
    found = placement(mesh, axes, shape).addressable_devices_indices_map(tuple(shape)).values()
    spans = [[one.indices(length) for one, length in zip(index or (), shape, strict=True)] for index in found]
    return tuple(
        range(min(start for start, _, _ in along), max(stop for _, stop, _ in along))
        for along in zip(*spans, strict=True)
    )


def constrain(mesh: Mesh | None, x: Array, axes: Sequence[str], along: Collection[str] = MESH) -> Array:
    """Places `x` by the rules. Without a mesh, returns it unchanged."""
    if mesh is None:
        return x
    placed: Array = with_sharding_constraint(x, NamedSharding(mesh, partition(mesh, axes, x.shape, along)))
    return placed


def over_rows(mesh: Mesh) -> NamedSharding:
    """Sharding of a batch: axis 0 is split as its rows."""
    return NamedSharding(mesh, PartitionSpec(ROWS))


def over_devices(mesh: Mesh) -> NamedSharding:
    """Sharding of flat fragments: axis 0 is split evenly over all devices."""
    return NamedSharding(mesh, PartitionSpec(MESH))


def everywhere(mesh: Mesh) -> NamedSharding:
    """Sharding with the whole value on each device."""
    return NamedSharding(mesh, PartitionSpec())

"""Where each logical axis lies on the unit's one-dimensional mesh: one table for parameters and batches."""

from __future__ import annotations

from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atoll_runtime.model.parameters import AXES

DEVICES = "devices"
"""The mesh's only axis: every device of the unit."""

RULES: dict[str, str | None] = {
    "vocabulary": DEVICES,
    "width": DEVICES,
    "hidden": DEVICES,
    "heads": DEVICES,
    "kv_heads": DEVICES,
    "head": DEVICES,
    "layers": None,  # the scan goes along it
    "scale": None,  # too small to be worth a gather
}
"""Parameters are fully sharded, by the outermost axis that can be: a flat fragment lies as its tensors do."""


def placement(mesh: Mesh, name: str, shape: tuple[int, ...]) -> NamedSharding:
    """Sharding of parameter `name`: its first axis that a rule names and the devices divide."""
    devices = mesh.devices.size
    for at, (axis, length) in enumerate(zip(AXES[name], shape, strict=True)):
        if RULES[axis] and length % devices == 0:
            return NamedSharding(mesh, PartitionSpec(*[None] * at, RULES[axis]))
    return everywhere(mesh)


def over_devices(mesh: Mesh) -> NamedSharding:
    """Axis 0 split evenly over the devices: batches, flat fragments."""
    return NamedSharding(mesh, PartitionSpec(DEVICES))


def everywhere(mesh: Mesh) -> NamedSharding:
    """The whole value on each device."""
    return NamedSharding(mesh, PartitionSpec())

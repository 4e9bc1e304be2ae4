"""The unit's processes and devices as one mesh."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from atoll_runtime.contract import MeshSpec, UnitContract
from atoll_runtime.learner import chips
from atoll_runtime.model import ModelError
from atoll_runtime.model.rules import MESH

INITIALISATION_TIMEOUT = 300
"""Seconds that a host waits for the others of its gang, because images and nodes are not ready at the same time."""
HEARTBEAT_TIMEOUT = 10
"""Seconds until a dead host ends the others, so that the operator sees the whole gang fail."""
SHUTDOWN_TIMEOUT = 20
"""Seconds that a host waits for the others at the end."""


def join(unit: UnitContract, shape: MeshSpec) -> Mesh:
    """Waits for the unit's other hosts and spans a mesh over all devices, host by host.

    Raises:
        RuntimeError: the others did not join in time.
        ModelError: see `span`.
        Terminal, ChipsUnavailable: see `chips`.
    """
    chips.claim(unit.chips)
    if unit.hosts > 1:
        jax.distributed.initialize(
            coordinator_address=unit.coordinator,
            num_processes=unit.hosts,
            process_id=unit.host,
            initialization_timeout=INITIALISATION_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    return span(chips.devices(unit.chips), shape)


def span(devices: list[jax.Device], shape: MeshSpec | None = None) -> Mesh:
    """Returns a mesh with each host's devices side by side in flat order. Default: fully sharded data-parallel.

    Raises:
        ModelError: tensor × expert does not divide the number of devices.
    """
    shape = shape or MeshSpec()
    inner = shape.tensor * shape.expert
    if len(devices) % inner:
        raise ModelError(
            f"inner.mesh: tensor {shape.tensor} × expert {shape.expert} must divide the unit's {len(devices)} chips"
        )
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    grid = np.array(ordered).reshape(-1, shape.expert, shape.tensor)
    return Mesh(grid, MESH, axis_types=(AxisType.Auto,) * len(MESH))


def local_range(mesh: Mesh) -> tuple[int, int]:
    """This host's devices [start, stop) in the mesh's flat order."""
    mine = [at for at, device in enumerate(mesh.devices.flat) if device.process_index == jax.process_index()]
    return mine[0], mine[-1] + 1


def leave() -> None:
    """Ends the link to the unit's other hosts, if there is one."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()

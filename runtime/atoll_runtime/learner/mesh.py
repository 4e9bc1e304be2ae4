"""The unit's processes and devices as one mesh."""

from __future__ import annotations

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from atoll_runtime.contract import UnitContract
from atoll_runtime.model.axes import DEVICES

INITIALISATION_TIMEOUT = 300
"""Seconds that a host waits for the others of its gang; images and nodes come up at different times."""
HEARTBEAT_TIMEOUT = 10
"""Seconds until a dead host ends the others, so that the operator sees the whole gang fail."""
SHUTDOWN_TIMEOUT = 20
"""Seconds that a host waits for the others at the end."""


def join(unit: UnitContract) -> Mesh:
    """Waits for the unit's other hosts and spans one axis over all devices, host by host.

    Raises:
        RuntimeError: the others did not come in time.
    """
    if unit.hosts > 1:
        jax.distributed.initialize(
            coordinator_address=unit.coordinator,
            num_processes=unit.hosts,
            process_id=unit.host,
            initialization_timeout=INITIALISATION_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    return span(jax.devices())


def span(devices: list[jax.Device]) -> Mesh:
    """A one-dimensional mesh in which each host's devices are neighbours."""
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(ordered), (DEVICES,), axis_types=(AxisType.Auto,))


def local_range(mesh: Mesh) -> tuple[int, int]:
    """This host's devices [start, stop) in the mesh."""
    mine = [at for at, device in enumerate(mesh.devices) if device.process_index == jax.process_index()]
    return mine[0], mine[-1] + 1


def leave() -> None:
    """Ends the link to the unit's other hosts; no error where there is none."""
    if jax.distributed.is_initialized():
        jax.distributed.shutdown()

"""The unit's processes and devices as one mesh. JAX uses this host's TPU chips, and no other devices instead.

By default JAX uses the CPU if it has no libtpu or libtpu has no chip, and only logs a line about it. A unit would then
train on, orders of magnitude slower, on nodes that are paid for their chips.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import time
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from atoll_runtime.contract import MeshSpec, UnitContract
from atoll_runtime.model import ModelError
from atoll_runtime.model.rules import MESH
from atoll_runtime.process import Terminal
from atoll_runtime.syncer.backoff import Backoff

INITIALISATION_TIMEOUT = 300
"""Seconds that a host waits for the others of its gang, because images and nodes are not ready at the same time."""
LOOK_SECONDS = (0.02, 0.5)
"""First and longest wait between two looks whether host 0 is there."""
HEARTBEAT_TIMEOUT = 10
"""Seconds until a dead host ends the others, so that the operator sees the whole gang fail."""
SHUTDOWN_TIMEOUT = 20
"""Seconds that a host waits for the others at the end."""


class ChipsUnavailable(Exception):
    """JAX cannot use the chips now: another process holds them, the node is faulty, or it may not lock memory."""


def join(unit: UnitContract, shape: MeshSpec) -> Mesh:
    """Waits for the unit's other hosts and spans a mesh over all devices, host by host.

    Raises:
        RuntimeError: the others did not join in time.
        ModelError: see `span`.
        Terminal: JAX cannot use this host's chips, or has other devices.
        ChipsUnavailable: JAX cannot use them now.
    """
    _claim(unit.chips)
    if unit.hosts > 1:
        if unit.host > 0:
            reach(unit.coordinator)
        jax.distributed.initialize(
            coordinator_address=unit.coordinator,
            num_processes=unit.hosts,
            process_id=unit.host,
            initialization_timeout=INITIALISATION_TIMEOUT,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
            cluster_detection_method="deactivate",  # all is said here
        )
    return span(_devices(unit.chips), shape)


def reach(coordinator: str, seconds: float = INITIALISATION_TIMEOUT) -> None:
    """Waits until host 0 accepts connections. JAX alone would try again after a second, and then later and later.

    Raises:
        RuntimeError: host 0 did not accept one in time.
    """
    host, _, port = coordinator.rpartition(":")
    backoff, until = Backoff(*LOOK_SECONDS), time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise RuntimeError(
                    f"host 0 of the unit, {coordinator}, is not there after {seconds} s"
                ) from error
        time.sleep(backoff.seconds())


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


def _claim(chips: int) -> None:
    """Makes JAX fail if it would use the CPU instead of this host's chips. Call before JAX looks for any device."""
    if not _wanted(chips):
        return
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise Terminal(
            "ChipsMissing",
            f"this host was given {chips} TPU chips, and JAX finds 0: the image has no libtpu; one with the extra "
            "`tpu` is right",
        )
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "tpu,cpu")


def _devices(chips: int) -> list[jax.Device]:
    """All devices of the unit, once those of this host are checked against what it was given."""
    if not _wanted(chips):
        return jax.devices()
    try:
        found = jax.devices()
    except RuntimeError as error:
        raise ChipsUnavailable(f"this host was given {chips} TPU chips; {error}") from error
    check_chips(chips, [device.platform for device in jax.local_devices()])
    return found


def check_chips(chips: int, platforms: Sequence[str]) -> None:
    """Checks that devices of these platforms are `chips` chips: one device for each chip, or one for each core of a
    chip (TPU7x). Raises `Terminal` if they are not."""
    if platforms.count("tpu") >= chips:
        return
    kinds = sorted({*platforms})
    told = ", ".join(f"{platforms.count(kind)} {kind}" for kind in kinds) or "0"
    raise Terminal("ChipsMissing", f"this host was given {chips} TPU chips, and JAX has {told} devices")


def _wanted(chips: int) -> bool:
    """Whether JAX must use chips: their number is known, and the environment names no other platforms, as in the local
    cluster."""
    named = jax.config.values["jax_platforms"]
    return chips > 0 and (not named or "tpu" in named.split(","))

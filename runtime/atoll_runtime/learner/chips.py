"""Makes sure that JAX uses this host's TPU chips, and no other devices instead.

By default JAX uses the CPU if it has no libtpu or libtpu has no chip, and only logs a line about it. A unit would then
train on, orders of magnitude slower, on nodes that are paid for their chips.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

import jax

from atoll_runtime.learner.errors import Terminal

MISSING = "ChipsMissing"


class ChipsUnavailable(Exception):
    """JAX cannot use the chips now: another process holds them, the node is faulty, or it may not lock memory."""


def claim(chips: int) -> None:
    """Makes JAX fail if it would use the CPU instead of this host's chips. Call before JAX looks for any device.

    Args:
        chips: how many this host was given; 0 if unknown.

    Raises:
        Terminal: this image cannot use a TPU.
    """
    if not _wanted(chips):
        return
    if importlib.util.find_spec("libtpu") is None and not os.environ.get("TPU_LIBRARY_PATH"):
        raise Terminal(
            MISSING,
            f"this host was given {chips} TPU chips, and JAX finds 0: the image has no libtpu; one with the extra "
            "`tpu` is right",
        )
    if not jax.config.values["jax_platforms"]:
        jax.config.update("jax_platforms", "tpu,cpu")


def devices(chips: int) -> list[jax.Device]:
    """All devices of the unit, once those of this host are checked against what it was given.

    Raises:
        Terminal: JAX has other devices, or fewer.
        ChipsUnavailable: JAX cannot use them now.
    """
    if not _wanted(chips):
        return jax.devices()
    try:
        found = jax.devices()
    except RuntimeError as error:
        raise ChipsUnavailable(f"this host was given {chips} TPU chips; {error}") from error
    check(chips, [device.platform for device in jax.local_devices()])
    return found


def check(chips: int, platforms: Sequence[str]) -> None:
    """Checks that these are the devices of `chips` chips: one for each chip, or one for each core of a chip (TPU7x).

    Args:
        platforms: one for each of this host's devices.

    Raises:
        Terminal: they are not.
    """
    if platforms.count("tpu") >= chips:
        return
    kinds = sorted({*platforms})
    told = ", ".join(f"{platforms.count(kind)} {kind}" for kind in kinds) or "0"
    raise Terminal(MISSING, f"this host was given {chips} TPU chips, and JAX has {told} devices")


def _wanted(chips: int) -> bool:
    """Whether JAX must use chips. False if the environment names other platforms, as in the local cluster."""
    named = jax.config.values["jax_platforms"]
    return chips > 0 and (not named or "tpu" in named.split(","))

"""This host's TPU chips: that JAX uses them, and nothing else in their place.

JAX by itself takes the CPU where it has no libtpu, or libtpu no chip, and says so in a line of its log: a unit would
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
    """JAX cannot use the chips now: another process holds them, the node is a bad one, or it may not lock memory."""


def claim(chips: int) -> None:
    """Has JAX fail where it would take the CPU in the place of this host's chips; before it looks for any device.

    Args:
        chips: that this host was given; 0 where nobody said.

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
    """All of the unit, when those of this host are what it was given.

    Raises:
        Terminal: JAX has other devices, or fewer.
        ChipsUnavailable: it cannot use them now.
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
    """Whether these are the devices of so many chips: one a chip, or one for each of its cores (TPU7x).

    Args:
        platforms: of each of this host's devices.

    Raises:
        Terminal: they are not.
    """
    if platforms.count("tpu") >= chips:
        return
    kinds = sorted({*platforms})
    told = ", ".join(f"{platforms.count(kind)} {kind}" for kind in kinds) or "0"
    raise Terminal(MISSING, f"this host was given {chips} TPU chips, and JAX has {told} devices")


def _wanted(chips: int) -> bool:
    """Unless the environment names other platforms, as the device plugin of the local cluster does."""
    named = jax.config.values["jax_platforms"]
    return chips > 0 and (not named or "tpu" in named.split(","))

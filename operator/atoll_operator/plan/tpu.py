"""TPU shapes on GKE: accelerator, topology and machine type to hosts and chips.

Source: GKE's machine types as in xpk `system_characteristics.py` and pathways-job `ValidTpuTopologiesMap`.
tpu7x (two containers a host) and v4 are not offered.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type and the slices that are made of it."""

    name: str
    chips: int
    """Per host."""
    topologies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """What one value of the node label `cloud.google.com/gke-tpu-accelerator` offers."""

    accelerator: str
    prefix: str
    """Of `TPU_ACCELERATOR_TYPE`, such as `v6e` in `v6e-8`."""
    cores_per_chip: int
    """By which the number in `TPU_ACCELERATOR_TYPE` is counted: TensorCores up to v5p, chips for v5e and v6e."""
    machines: tuple[Machine, ...]

    def topologies(self) -> tuple[str, ...]:
        """All, each once, in order of size."""
        names = {topology for machine in self.machines for topology in machine.topologies}
        return tuple(sorted(names, key=lambda topology: (chips_of(topology), topology)))

    def ambiguous(self) -> tuple[str, ...]:
        """Topologies that exist on more than one machine type, so that the user must name it."""
        return tuple(
            topology
            for topology in self.topologies()
            if sum(topology in machine.topologies for machine in self.machines) > 1
        )


@dataclass(frozen=True, slots=True)
class Slice:
    """One slice: what its pods and nodes look like."""

    accelerator: str
    topology: str
    machine: str
    hosts: int
    chips_per_host: int
    accelerator_type: str
    host_bounds: str
    """`TPU_CHIPS_PER_HOST_BOUNDS`."""


_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "2,4,1"}


def _cubes(largest: int) -> Iterable[str]:
    """Slices of whole 4x4x4 cubes, sides in ascending order, at most `largest` cubes a side and 140 cubes."""
    for sides in itertools.combinations_with_replacement(range(1, largest + 1), 3):
        if math.prod(sides) <= 140:
            yield "x".join(str(4 * side) for side in sides)


GENERATIONS = (
    Generation(
        "tpu-v5-lite-podslice",
        "v5litepod",
        1,
        (
            Machine("ct5lp-hightpu-1t", 1, ("1x1",)),
            Machine("ct5lp-hightpu-4t", 4, _FLAT),
            Machine("ct5lp-hightpu-8t", 8, ("2x4",)),
        ),
    ),
    Generation(
        "tpu-v5p-slice",
        "v5p",
        2,
        (Machine("ct5p-hightpu-4t", 4, ("2x2x1", "2x2x2", "2x2x4", "2x4x4", *_cubes(6))),),
    ),
    Generation(
        "tpu-v6e-slice",
        "v6e",
        1,
        (
            Machine("ct6e-standard-1t", 1, ("1x1",)),
            Machine("ct6e-standard-4t", 4, _FLAT),
            Machine("ct6e-standard-8t", 8, ("2x4",)),
        ),
    ),
)
ACCELERATORS = tuple(generation.accelerator for generation in GENERATIONS)
MAX_HOSTS = max(
    math.prod(int(side) for side in topology.split("x")) // machine.chips
    for generation in GENERATIONS
    for machine in generation.machines
    for topology in machine.topologies
)


def chips_of(topology: str) -> int:
    """Chips of a topology such as `2x2x4`."""
    return math.prod(int(side) for side in topology.split("x"))


@lru_cache(maxsize=1024)
def slice_of(accelerator: str, topology: str, machine_type: str | None = None) -> Slice:
    """The slice of that shape.

    Raises:
        ValueError: there is none; the message names the field and what would be right.
    """
    generation = next((item for item in GENERATIONS if item.accelerator == accelerator), None)
    if generation is None:
        raise ValueError(f"accelerator {accelerator!r} is unknown; one of {', '.join(ACCELERATORS)}")
    fitting = [machine for machine in generation.machines if topology in machine.topologies]
    if not fitting:
        offers = ", ".join(generation.topologies())
        raise ValueError(f"topology {topology!r} does not exist for {accelerator}; one of {offers}")
    if machine_type is not None:
        fitting = [machine for machine in fitting if machine.name == machine_type]
        if not fitting:
            raise ValueError(f"machineType {machine_type!r} makes no {topology} slice of {accelerator}")
    if len(fitting) > 1:
        names = ", ".join(machine.name for machine in fitting)
        raise ValueError(f"machineType is needed: {topology} of {accelerator} exists as {names}")
    machine = fitting[0]
    chips = chips_of(topology)
    return Slice(
        accelerator=accelerator,
        topology=topology,
        machine=machine.name,
        hosts=chips // machine.chips,
        chips_per_host=machine.chips,
        accelerator_type=f"{generation.prefix}-{chips * generation.cores_per_chip}",
        host_bounds=_BOUNDS[machine.chips],
    )

"""TPU shapes on GKE: from accelerator, topology and machine type to hosts and chips. Sources: xpk
`system_characteristics.py`; for slices of one host GKE's cluster autoscaler; for bounds, links and
`TPU_ACCELERATOR_TYPE` GKE's device plugin. v4 is not offered."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from atoll_operator.api.common import ACCELERATORS

CUBE = 4
"""Chips along each side of the cubes that make up larger slices of v5p and tpu7x."""
CHIPS = 4
"""Chips of a host in a slice of several hosts."""
LONGEST_SIDE = 256
"""Largest number of chips along one side of such a slice."""
MAX_HOSTS = 4096
"""Largest number of hosts of one unit in all its slices: 64 slices of the largest v5e or v6e."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine type, its chips, and the slices that consist of such machines."""

    name: str
    chips: int
    topologies: tuple[str, ...]
    """Topologies of its slices, except those of whole cubes."""
    cubes: int = 0
    """Largest number of 4x4x4 cubes in a slice of whole cubes (sides in ascending order); 0: no such slices."""

    def hosts(self, topology: str) -> int:
        return chips_of(topology) // self.chips

    def all_topologies(self) -> tuple[str, ...]:
        return (*self.topologies, *_cubes(self.cubes))


@dataclass(frozen=True, slots=True)
class Generation:
    """The slices behind one value of the node label `cloud.google.com/gke-tpu-accelerator`."""

    accelerator: str
    prefix: str
    """Prefix of `TPU_ACCELERATOR_TYPE`, such as `v6e` in `v6e-8`."""
    machines: tuple[Machine, ...]
    cores_per_chip: int = 1
    """What the number in `TPU_ACCELERATOR_TYPE` counts per chip: TensorCores of v5p and tpu7x, chips of v5e and v6e."""
    devices_per_chip: int = 1
    """JAX devices per chip: the two TensorCores of a v5p chip are one device, those of a tpu7x chip are two."""
    flex_start: bool = True
    """Whether GKE offers flex-start for slices of one host. Its documentation names v5e, v5p and v6e (GKE 1.33)."""

    def machines_of(self, topology: str) -> list[Machine]:
        return [machine for machine in self.machines if topology in machine.all_topologies()]

    def topologies(self) -> tuple[str, ...]:
        """All its topologies, each once, by size."""
        names = {topology for machine in self.machines for topology in machine.all_topologies()}
        return tuple(sorted(names, key=lambda topology: (chips_of(topology), topology)))

    def ambiguous(self) -> tuple[str, ...]:
        """Topologies that exist on more than one machine type, so that the user must name it."""
        return tuple(topology for topology in self.topologies() if len(self.machines_of(topology)) > 1)


@dataclass(frozen=True, slots=True)
class Slice:
    """The shape of one slice, as its pods and nodes have it."""

    topology: str
    machine: str
    hosts: int
    chips_per_host: int
    accelerator_type: str
    chip_bounds: str
    """Chips of a host along x, y and z: `TPU_CHIPS_PER_HOST_BOUNDS`."""
    host_bounds: str
    """Hosts of the slice along x, y and z: `TPU_HOST_BOUNDS`."""
    wrap: str
    """Whether links close the slice to a ring along x, y and z: `TPU_TOPOLOGY_WRAP`."""


_FLAT = ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16")
_DEEP = ("2x2x1", "2x2x2", "2x2x4", "2x4x4")
_BOUNDS = {1: (1, 1, 1), 4: (2, 2, 1), 8: (2, 4, 1)}
"""Chips of a host along x, y and z, by the number of chips."""


@lru_cache
def _cubes(most: int) -> tuple[str, ...]:
    sides = range(1, min(most, LONGEST_SIDE // CUBE) + 1)
    return tuple(
        "x".join(str(CUBE * side) for side in (a, b, c))
        for a, b in itertools.combinations_with_replacement(sides, 2)
        for c in range(b, min(most // (a * b), LONGEST_SIDE // CUBE) + 1)
    )


def _machines(family: str, by_chips: Mapping[int, tuple[str, ...]], cubes: int = 0) -> tuple[Machine, ...]:
    """Machine types by their chips. Those with four chips make up the slices of whole cubes."""
    return tuple(
        Machine(f"{family}-{chips}t", chips, names, cubes if chips == CHIPS else 0)
        for chips, names in by_chips.items()
    )


_FLAT_BY_CHIPS = {1: ("1x1",), 4: _FLAT, 8: ("2x4",)}
_ONE_HOST_BY_CHIPS = {1: ("1x1",), 4: ("2x2",), 8: ("2x4",)}
_TPU7X = _machines("tpu7x-standard", {1: ("1x1x1",), 4: _DEEP}, 144)
GENERATIONS = (
    Generation("tpu-v5-lite-podslice", "v5litepod", _machines("ct5lp-hightpu", _FLAT_BY_CHIPS)),
    Generation(
        "tpu-v5-lite-device", "v5lite", _machines("ct5l-hightpu", _ONE_HOST_BY_CHIPS), flex_start=False
    ),
    Generation("tpu-v5p-slice", "v5p", _machines("ct5p-hightpu", {4: _DEEP}, 140), cores_per_chip=2),
    Generation("tpu-v6e-slice", "v6e", _machines("ct6e-standard", _FLAT_BY_CHIPS)),
    Generation("tpu7x", "tpu7x", _TPU7X, cores_per_chip=2, devices_per_chip=2, flex_start=False),
)


def chips_of(topology: str) -> int:
    """Chips of a topology such as `2x2x4`."""
    return math.prod(_sides(topology))


def generation_of(accelerator: str) -> Generation:
    """Raises ValueError if there is none; the message names the field and what would be right."""
    if found := [each for each in GENERATIONS if each.accelerator == accelerator]:
        return found[0]
    raise ValueError(f"accelerator {accelerator!r} is unknown; one of {', '.join(ACCELERATORS)}")


@lru_cache(maxsize=1024)
def slice_of(accelerator: str, topology: str, machine_type: str | None = None) -> Slice:
    """Raises ValueError if there is no such slice; the message names the field and what would be right."""
    generation = generation_of(accelerator)
    fitting = [each for each in generation.machines_of(topology) if machine_type in (None, each.name)]
    if len(fitting) != 1:
        asked = f"topology {topology!r}" + (f" with machineType {machine_type!r}" if machine_type else "")
        problem = "needs a machineType" if fitting else "does not exist"
        raise ValueError(f"{asked} of {accelerator} {problem}: it has {offers(generation)}")
    machine, sides = fitting[0], _sides(topology)
    bounds = _BOUNDS[machine.chips]
    hosts = (side // per_host for side, per_host in zip((*sides, 1), bounds, strict=False))
    return Slice(
        topology=topology,
        machine=machine.name,
        hosts=machine.hosts(topology),
        chips_per_host=machine.chips,
        accelerator_type=f"{generation.prefix}-{chips_of(topology) * generation.cores_per_chip}",
        chip_bounds=_commas(bounds),
        host_bounds=_commas(hosts),
        wrap=_commas("true" if closed else "false" for closed in _rings(sides)),
    )


def offers(generation: Generation) -> str:
    """The available topologies with their machine types as text for a message."""
    named = dict.fromkeys(name for machine in generation.machines for name in machine.topologies)
    words = [f"{name} ({' or '.join(each.name for each in generation.machines_of(name))})" for name in named]
    cubes = f"AxBxC in multiples of {CUBE} with A <= B <= C and at most"
    words += [f"{cubes} {each.cubes} cubes ({each.name})" for each in generation.machines if each.cubes]
    return ", ".join(words)


def _commas(items: Iterable[object]) -> str:
    return ",".join(map(str, items))


def _rings(sides: tuple[int, ...]) -> tuple[bool, ...]:
    """Whether links close each axis to a ring. Slices of whole cubes are tori; a flat slice is closed along the sides
    that are as long as the whole pod's."""
    if len(sides) == 3:
        return (min(sides) >= CUBE,) * 3
    return (*(side == 16 for side in sides), False)


def _sides(topology: str) -> tuple[int, ...]:
    return tuple(int(side) for side in topology.split("x"))

"""Constants that rules name in capitals: the tables of TPU slices and of presets, and names that the operator uses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from atoll_operator.plan.pods.names import EVALUATED_LIMIT, NAMES_LIMIT, UNIT_NAME_LIMIT
from atoll_operator.plan.pods.template import PATHS, VOLUMES
from atoll_operator.plan.pods.topology import CUBE, GENERATIONS, Generation
from atoll_runtime.contract import SIZES, Dimensions

KERNEL_PATHS = ("/proc", "/sys")
"""Container runtimes refuse mounts there, or mount their own over them."""


def pieces(size: Dimensions) -> int:
    """Number of pieces that a decoder of this size can be cut into."""
    return size.layers * (13 if size.experts else 9) + (2 if size.tied else 3)


def with_tables(text: str) -> str:
    """A rule or a message with the values of its constants."""
    return re.sub(r"\b[A-Z]+_?[A-Z_]*[A-Z]\b", lambda name: _TEXTS.get(name[0], name[0]), text)


_SLICES = [
    (generation, machine, topology)
    for generation in GENERATIONS
    for machine in generation.machines
    for topology in machine.topologies
]
_CUBES = [(each, machine) for each in GENERATIONS for machine in each.machines if machine.cubes]
_FLEXIBLE = [generation for generation in GENERATIONS if generation.flex_start]


def _offers(generation: Generation) -> str:
    """Topologies with their machine types, in words."""
    machines: dict[str, list[str]] = {}
    for _, machine, topology in (each for each in _SLICES if each[0] is generation):
        machines.setdefault(topology, []).append(machine.name)
    words = [f"{topology} ({' or '.join(names)})" for topology, names in machines.items()]
    words += [
        f"AxBxC in multiples of {CUBE} with A <= B <= C and at most {machine.cubes} cubes ({machine.name})"
        for each, machine in _CUBES
        if each is generation
    ]
    return ", ".join(words)


def _one_host(generations: Iterable[Generation]) -> Iterator[str]:
    """Slices of one host: with the machine type, and without it where there is only one."""
    for generation, machine, topology in _SLICES:
        if generation in generations and machine.hosts(topology) == 1:
            yield f"{generation.accelerator} {topology} {machine.name}"
            if topology not in generation.ambiguous():
                yield f"{generation.accelerator} {topology}"


TABLES: dict[str, Any] = {
    "TOPOLOGIES": list(dict.fromkeys(f"{each.accelerator} {topology}" for each, _, topology in _SLICES)),
    "MACHINES": [f"{each.accelerator} {topology} {machine.name}" for each, machine, topology in _SLICES],
    "AMBIGUOUS": [f"{each.accelerator} {topology}" for each in GENERATIONS for topology in each.ambiguous()],
    "CUBE_CHIPS": {each.accelerator: machine.cubes * CUBE**3 for each, machine in _CUBES},
    "CUBE_MACHINES": [f"{each.accelerator} {machine.name}" for each, machine in _CUBES],
    "ONE_HOST": list(_one_host(GENERATIONS)),
    "FLEX_START": list(_one_host(_FLEXIBLE)),
    "FLEX_ACCELERATORS": [each.accelerator for each in _FLEXIBLE],
    "OFFERS": {each.accelerator: _offers(each) for each in GENERATIONS},
    "TWO_DEVICES_PER_CHIP": [each.accelerator for each in GENERATIONS if each.devices_per_chip == 2],
    "PRESET_HEADS": {
        name: math.gcd(size.heads, size.kv_heads, size.hidden, size.expert_hidden)
        for name, size in SIZES.items()
    },
    "PRESET_EXPERTS": {name: max(size.experts, 1) for name, size in SIZES.items()},
    "PRESET_PIECES": {name: pieces(size) for name, size in SIZES.items()},
    "NAMES_LIMIT": NAMES_LIMIT,
    "EVALUATED_LIMIT": EVALUATED_LIMIT,
    "UNIT_NAME_LIMIT": UNIT_NAME_LIMIT,
    "OUR_VOLUMES": list(VOLUMES),
    "OUR_PATHS": [*PATHS, *KERNEL_PATHS],
}
_TEXTS = {name: str(value) for name, value in TABLES.items()}
"""Python writes strings, numbers, lists and maps of these as CEL does."""

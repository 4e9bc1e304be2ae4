"""Shapes of the measured runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Units of one kind. One fake node stands for the node pool of each unit's slice."""

    units: int
    hosts: int
    accelerator: str
    topology: str
    machine: str

    @property
    def pods(self) -> int:
        return self.units * self.hosts

    @property
    def name(self) -> str:
        return f"{self.units}x{self.hosts}"

    @property
    def nodes(self) -> int:
        """At least a hundred; exclusive placement needs a node pool for each unit."""
        return max(100, self.units)

    @property
    def node_names(self) -> list[str]:
        return [f"{self.name}-{index}" for index in range(self.nodes)]


SMALL = Shape(units=8, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")
WIDE = Shape(units=100, hosts=16, accelerator="tpu-v5p-slice", topology="4x4x4", machine="ct5p-hightpu-4t")
MANY = Shape(units=500, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")

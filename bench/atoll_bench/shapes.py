"""The runs that are measured."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Units of one kind, each on one fake node that stands for the node pool of its slice."""

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
        """A hundred, and more only where exclusive placement needs a node pool for each of more units."""
        return max(100, self.units)


SMALL = Shape(units=8, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")
WIDE = Shape(units=100, hosts=16, accelerator="tpu-v5p-slice", topology="4x4x4", machine="ct5p-hightpu-4t")
MANY = Shape(units=500, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")

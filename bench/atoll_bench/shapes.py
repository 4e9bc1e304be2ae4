"""The runs that `atoll bench operator` measures."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_bench.client import Object

RUN = "bench"
POOL_UNITS = 250
"""Units of a pool. A run's pool has at most 256."""


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
        """A hundred, or one for each unit if there are more, because exclusive placement needs a node pool for each."""
        return max(100, self.units)

    @property
    def node_names(self) -> list[str]:
        return [f"{self.name}-{index}" for index in range(self.nodes)]


SMALL = Shape(units=8, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")
WIDE = Shape(units=100, hosts=16, accelerator="tpu-v5p-slice", topology="4x4x4", machine="ct5p-hightpu-4t")
MANY = Shape(units=500, hosts=4, accelerator="tpu-v6e-slice", topology="4x4", machine="ct6e-standard-4t")

HUGE = Shape(units=5, hosts=2304, accelerator="tpu7x", topology="16x24x24", machine="tpu7x-standard-4t")


def training_run(shape: Shape) -> Object:
    """A run of `shape.units` units, in pools of at most 250."""
    counts = [min(POOL_UNITS, shape.units - first) for first in range(0, shape.units, POOL_UNITS)]
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "TrainingRun",
        "metadata": {"name": RUN},
        "spec": {
            "model": {"preset": "1m"},
            "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
            "target": {"globalSteps": 1_000_000},
            "checkpoint": {"uri": "gs://bucket/run"},
            "pools": [
                {
                    "name": f"p{index}",
                    "accelerator": shape.accelerator,
                    "topology": shape.topology,
                    "units": count,
                }
                for index, count in enumerate(counts)
            ],
        },
    }

"""Objects of the API from which several tests begin. Each test copies what it changes."""

from __future__ import annotations

from typing import Any

from atoll_operator.api.learnerunit import LearnerUnitSpec

RUN: dict[str, Any] = {
    "apiVersion": "atoll.dev/v1alpha1",
    "kind": "TrainingRun",
    "metadata": {"name": "r"},
    "spec": {
        "model": {"preset": "1m"},
        "data": {"uri": "gs://bucket/data", "sequenceLength": 128},
        "target": {"globalSteps": 100},
        "checkpoint": {"uri": "gs://bucket/run"},
        "pools": [{"name": "p", "accelerator": "tpu-v6e-slice", "topology": "2x2", "units": 2}],
    },
}
POOLS: list[dict[str, Any]] = [
    {"name": "one", "accelerator": "tpu-v5p-slice", "topology": "2x2x1"},
    {"name": "two", "accelerator": "tpu-v6e-slice", "topology": "2x4", "machineType": "ct6e-standard-4t"},
]
"""A pool of single hosts and one of slices of two hosts, without their numbers of units."""
TWO_HOSTS = LearnerUnitSpec(
    run="r",
    pool="two",
    accelerator="tpu-v6e-slice",
    topology="2x4",
    machine_type="ct6e-standard-4t",
    batch=8,
    stream=0,
    streams=3,
)

"""The cluster that JAX itself finds in the environment of every pod is the unit, and nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pod_kinds import all_pods, learner_unit, values

from atoll_runtime.contract import ENV_UNIT, parse_unit

PROBE = Path(__file__).resolve().parents[2] / "support" / "operator" / "detect_cluster.py"
UNITS = [
    ("tpu-v5-lite-podslice", "2x2", None, 1),
    ("tpu-v5-lite-podslice", "4x4", "ct5lp-hightpu-4t", 1),
    ("tpu-v5-lite-podslice", "2x4", "ct5lp-hightpu-4t", 2),
    ("tpu-v5-lite-device", "2x4", None, 1),
    ("tpu-v5p-slice", "2x2x1", None, 1),
    ("tpu-v5p-slice", "4x4x4", None, 1),
    ("tpu-v5p-slice", "2x2x4", None, 3),
    ("tpu-v6e-slice", "2x4", "ct6e-standard-8t", 1),
    ("tpu-v6e-slice", "8x8", None, 1),
    ("tpu-v6e-slice", "4x4", "ct6e-standard-4t", 4),
    ("tpu7x", "2x2x1", None, 1),
    ("tpu7x", "2x2x4", "tpu7x-standard-4t", 1),
    ("tpu7x", "2x2x2", None, 64),
]


def environments(index: int, number: int = 3, unit: int | None = None) -> list[dict[str, str]]:
    """Of the pods of a unit like `UNITS[index]` in order of hosts; `unit` is its number in its pool."""
    accelerator, topology, machine, slices = UNITS[index]
    made = learner_unit(
        number=number, name=f"r-p-{index if unit is None else unit}", accelerator=accelerator, topology=topology,
        machine_type=machine, slices=slices,
    )  # fmt: skip
    return [values(pod) for pod in all_pods(made)]


@pytest.fixture(scope="module")
def pods() -> list[dict[str, str]]:
    """The environment of every pod of all units."""
    return [each for index in range(len(UNITS)) for each in environments(index)]


@pytest.fixture(scope="module")
def found(pods: list[dict[str, str]]) -> list[list[Any]]:
    """What JAX finds in each: one process for all, because the import of JAX takes seconds.

    `JAX_FORCE_TPU_INIT` stands for the chips; the API server's address is in every pod, and JAX knows a cluster by it.
    """
    names = [name for each in pods for name in each["TPU_WORKER_HOSTNAMES"].split(",")]
    given = {
        "names": names,
        "environments": [{**each, "KUBERNETES_SERVICE_HOST": "10.0.0.1"} for each in pods],
    }
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        input=json.dumps(given),
        env={"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "JAX_FORCE_TPU_INIT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_each_cluster_that_jax_finds_is_one_whole_unit_as_its_contract_says(
    pods: list[dict[str, str]], found: list[list[Any]]
) -> None:
    members: dict[str, list[tuple[str, int, int]]] = {}
    contracts = [parse_unit(each[ENV_UNIT]) for each in pods]
    for said, (kind, coordinator, count, number) in zip(contracts, found, strict=True):
        assert (kind, coordinator) == ("GkeTpuCluster", said.coordinator)
        assert (count, number) == (said.hosts, said.host)
        members.setdefault(coordinator, []).append((said.unit, count, number))
    assert len(members) == len(UNITS)
    for cluster in members.values():
        assert cluster == [(cluster[0][0], len(cluster), number) for number in range(len(cluster))]


@pytest.mark.parametrize("index", range(len(UNITS)))
def test_nothing_of_a_unit_is_named_by_another_or_by_its_own_next_gang(index: int) -> None:
    addresses = {name for each in environments(index) for name in each["TPU_WORKER_HOSTNAMES"].split(",")}
    for other in (environments(index, unit=index + 100), environments(index, number=4)):
        for each in other:
            assert addresses.isdisjoint(each["TPU_WORKER_HOSTNAMES"].split(","))
            assert each.get("MEGASCALE_COORDINATOR_ADDRESS") not in addresses

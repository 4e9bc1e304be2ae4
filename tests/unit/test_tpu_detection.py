"""The cluster that JAX itself finds in the environment of every pod is the unit, and nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.pods.affinity import PodPlacement
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.template import PodSettings
from atoll_runtime.contract import ENV_UNIT, UnitContract, parse_unit

PROBE = Path(__file__).resolve().parents[1] / "support" / "detect_cluster.py"
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


def gang(
    index: int, accelerator: str, topology: str, machine: str | None, slices: int, number: int = 3
) -> Gang:
    return Gang(
        namespace="ns",
        unit=f"r-p-{index}",
        uid=f"u{index}",
        placement=number,
        incarnation=number,
        spec=LearnerUnitSpec(
            run="r", pool="p", accelerator=accelerator, topology=topology, machine_type=machine, slices=slices, batch=8,
            stream=index, streams=16,
        ),
        settings=PodSettings(run="r", image="i", pull_policy="Always", environment={}),
    )  # fmt: skip


def environments(unit: Gang) -> list[dict[str, str]]:
    """Of the unit's pods in order of hosts."""
    pods = unit.pods(dict.fromkeys(range(unit.hosts), PodPlacement()))
    return [
        {item["name"]: item["value"] for item in pod["spec"]["containers"][0]["env"] if "value" in item}
        for pod in pods
    ]


@pytest.fixture(scope="module")
def pods() -> list[dict[str, str]]:
    """The environment of every pod of all units."""
    return [each for index, unit in enumerate(UNITS) for each in environments(gang(index, *unit))]


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


def contracts(pods: list[dict[str, str]]) -> list[UnitContract]:
    return [parse_unit(each[ENV_UNIT]) for each in pods]


def test_jax_takes_every_pod_for_a_host_of_a_tpu_cluster_on_gke(found: list[list[Any]]) -> None:
    assert {kind for kind, *_ in found} == {"GkeTpuCluster"}


def test_jax_finds_the_processes_that_the_contract_says(
    pods: list[dict[str, str]], found: list[list[Any]]
) -> None:
    said = [[each.coordinator, each.hosts, each.host] for each in contracts(pods)]
    assert [rest for _, *rest in found] == said


def test_each_cluster_that_jax_finds_is_one_whole_unit(
    pods: list[dict[str, str]], found: list[list[Any]]
) -> None:
    members: dict[str, list[tuple[str, int, int]]] = {}
    for said, (_, coordinator, count, number) in zip(contracts(pods), found, strict=True):
        members.setdefault(coordinator, []).append((said.unit, count, number))
    assert len(members) == len(UNITS)
    for cluster in members.values():
        units, counts, numbers = zip(*cluster, strict=True)
        assert len(set(units)) == 1
        assert set(counts) == {len(cluster)}
        assert list(numbers) == list(range(len(cluster)))


@pytest.mark.parametrize("index", range(len(UNITS)))
def test_nothing_of_a_unit_is_named_by_another_or_by_its_own_next_gang(index: int) -> None:
    own = environments(gang(index, *UNITS[index]))
    others = [gang(index + 100, *UNITS[index]), gang(index, *UNITS[index], number=4)]
    addresses = {name for each in own for name in each["TPU_WORKER_HOSTNAMES"].split(",")}
    for other in others:
        for each in environments(other):
            assert addresses.isdisjoint(each["TPU_WORKER_HOSTNAMES"].split(","))
            assert each.get("MEGASCALE_COORDINATOR_ADDRESS") not in addresses

"""What the pods of units of one and of several slices are told, and the cluster that JAX itself finds in it."""

from __future__ import annotations

import json
import os
from typing import Any
from unittest.mock import patch

import pytest
from jax._src.clusters import ClusterEnv, cloud_tpu_cluster, cluster
from pod_kinds import all_pods, learner_unit, settings, values, variables

from atoll_operator.plan.pods.gang import LIBTPU_ARGUMENTS
from atoll_operator.plan.unit.unit import UnitObserved
from atoll_runtime.contract import ENV_UNIT, parse_unit

V5E, V6E = "tpu-v5-lite-podslice", "tpu-v6e-slice"
UNITS = [
    (V5E, "2x2", None, 1), (V5E, "4x4", "ct5lp-hightpu-4t", 1), (V5E, "2x4", "ct5lp-hightpu-4t", 2),
    ("tpu-v5-lite-device", "2x4", None, 1), ("tpu-v5p-slice", "2x2x1", None, 1), ("tpu-v5p-slice", "4x4x4", None, 1),
    ("tpu-v5p-slice", "2x2x4", None, 3), (V6E, "2x4", "ct6e-standard-8t", 1), (V6E, "8x8", None, 1),
    (V6E, "4x4", "ct6e-standard-4t", 4), ("tpu7x", "2x2x1", None, 1), ("tpu7x", "2x2x4", "tpu7x-standard-4t", 1),
    ("tpu7x", "2x2x2", None, 64), ("tpu-v5p-slice", "4x4x8", None, 2),
]  # fmt: skip
FOREIGN = ("TPU_", "MEGASCALE_", "JAX_", "KUBERNETES_")
"""Beginnings of variables that JAX reads, and that only the pod may have."""


def v5p(topology: str, slices: int, **variables: str) -> UnitObserved:
    kind = {"accelerator": "tpu-v5p-slice", "topology": topology, "slices": slices}
    return learner_unit(settings(**variables), 1, name="r-p-0", **kind)


def environments(index: int, number: int = 3, unit: int | None = None) -> list[dict[str, str]]:
    """Of the learners of a unit like `UNITS[index]` in order of hosts; `unit` is its number in its pool."""
    accelerator, topology, machine, slices = UNITS[index]
    name = f"r-p-{index if unit is None else unit}"
    kind = {"accelerator": accelerator, "topology": topology, "machine_type": machine, "slices": slices}
    pods = map(values, all_pods(learner_unit(number=number, name=name, **kind)))
    return [pod | parse_unit(pod[ENV_UNIT]).host_lists() for pod in pods]


def addresses(pods: list[dict[str, str]]) -> set[str]:
    return {name for each in pods for name in each["TPU_WORKER_HOSTNAMES"].split(",")}


def detect(environment: dict[str, str], names: set[str]) -> tuple[Any, ...]:
    """What JAX makes of a pod's environment: the kind of cluster, its coordinator, its size and this one's number. The
    names of pods alone resolve, and the metadata server of the VM knows of no slices."""

    def resolve(name: str) -> str:
        assert name in names, "the detection waits for a name that does not exist"
        return "127.0.0.1"

    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    # The API server's address is in every pod, and JAX knows a cluster by it.
    own |= {**environment, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    with (
        patch.dict(os.environ, own, clear=True),
        patch("socket.gethostbyname", resolve),
        patch.multiple(cloud_tpu_cluster, running_in_cloud_tpu_vm=True, get_metadata=lambda key: ("", 404)),
        patch.object(cluster, "running_in_cloud_tpu_vm", True),
    ):
        kinds = (each for each in ClusterEnv._cluster_types if not each.opt_in_only_method)
        kind = next(each for each in kinds if each.is_env_present())
        found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 60)
    return kind.__name__, *found[:3]


@pytest.mark.parametrize("index", range(len(UNITS)))
def test_jax_finds_one_cluster_that_is_the_unit_as_its_contract_says(index: int) -> None:
    pods = environments(index)
    contracts = [parse_unit(each[ENV_UNIT]) for each in pods]
    found = [detect(each, addresses(pods)) for each in pods]
    assert found == [("GkeTpuCluster", said.coordinator, said.hosts, said.host) for said in contracts]
    assert [host for *_, host in found] == list(range(len(pods)))
    assert {(said.coordinator, said.hosts) for said in contracts} == {(found[0][1], len(pods))}


@pytest.mark.parametrize("index", range(len(UNITS)))
def test_nothing_of_a_unit_is_named_by_another_or_by_its_own_next_gang(index: int) -> None:
    ours = addresses(environments(index))
    for other in (environments(index, unit=index + 100), environments(index, number=4)):
        named = addresses(other) | {each.get("MEGASCALE_COORDINATOR_ADDRESS") for each in other}
        assert ours.isdisjoint(named)


def test_the_pods_of_a_large_slice_do_not_grow_with_it() -> None:
    assert len(json.dumps(all_pods(v5p("16x20x28", 1))[-1])) < 6_000


def test_a_learner_lists_the_hosts_of_its_slice_in_order() -> None:
    *_, last = map(values, all_pods(v5p("2x2x4", 2)))
    names = [f"r-p-0-1-{host}.r-p-0.ns.svc" for host in range(4, 8)]
    lists = parse_unit(last[ENV_UNIT]).host_lists()
    assert lists["TPU_WORKER_HOSTNAMES"] == ",".join(names)
    assert lists["TPU_PROCESS_ADDRESSES"] == ",".join(f"{each}:8471" for each in names)


def test_a_hang_between_slices_ends_the_processes_and_the_administrators_flags_come_last() -> None:
    ends = ["--megascale_error_reporter_abort_on_hang=true", "--megascale_error_reporter_abort_on_error=true"]
    for slices, wanted in ((2, [*ends, "--mine=true"]), (1, ["--mine=true"])):
        pod = all_pods(v5p("2x2x2", slices, **{LIBTPU_ARGUMENTS: "--mine=true"}))[1]
        assert values(pod)[LIBTPU_ARGUMENTS].split() == wanted


@pytest.mark.parametrize("slices", [1, 2])
def test_flags_that_a_run_takes_from_a_config_map_are_not_replaced(slices: int) -> None:
    flags = {"name": LIBTPU_ARGUMENTS, "valueFrom": {"configMapKeyRef": {"name": "flags", "key": "libtpu"}}}
    kind = {"accelerator": V6E, "topology": "4x4", "slices": slices}
    pod = all_pods(learner_unit(settings({"env": [flags]}, **{LIBTPU_ARGUMENTS: "--a=true"}), **kind))[0]
    assert variables(pod)[LIBTPU_ARGUMENTS] == flags

"""A unit of several slices on a real API server: its pods, its loss, and a unit that is refused."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
POOLS = [
    {
        "name": "wide", "accelerator": "tpu-v6e-slice", "topology": "2x4", "machineType": "ct6e-standard-4t",
        "slicesPerUnit": 2, "units": 2, "capacity": "Spot",
    },
    {"name": "flex", "accelerator": "tpu-v5p-slice", "topology": "2x2x1", "units": 1, "capacity": "FlexStart"},
]  # fmt: skip
UNITS = ["r-wide-0", "r-wide-1", "r-flex-0"]


@pytest.fixture
def placed(bench):
    """A run with all its pods, under one operator."""
    bench.operator()
    run = bench.run(pools=POOLS)
    bench.settled(run, UNITS)
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    return bench, run


def environment(pod) -> dict[str, str]:
    return {item["name"]: item.get("value", "") for item in pod["spec"]["containers"][0]["env"]}


def test_each_slice_has_its_own_hosts_and_all_have_one_coordinator(placed) -> None:
    bench, _ = placed
    for unit in UNITS[:2]:
        pods = bench.pods(unit)
        assert sorted(pods) == [f"{unit}-1-{host}" for host in range(4)]
        names = [f"{unit}-1-{host}.{unit}.{bench.namespace}.svc" for host in range(4)]
        for host in range(4):
            found = environment(pods[f"{unit}-1-{host}"])
            number, worker = divmod(host, 2)
            assert pods[f"{unit}-1-{host}"]["metadata"]["labels"]["atoll.dev/slice"] == str(number)
            assert found["TPU_WORKER_HOSTNAMES"] == ",".join(names[2 * number : 2 * number + 2])
            assert (found["TPU_WORKER_ID"], found["MEGASCALE_SLICE_ID"]) == (str(worker), str(number))
            assert (found["MEGASCALE_NUM_SLICES"], found["MEGASCALE_COORDINATOR_ADDRESS"]) == ("2", names[0])
            contract = json.loads(found["ATOLL_UNIT"])
            assert (contract["host"], contract["hosts"]) == (host, 4)
            assert contract["coordinator"] == f"{names[0]}:8476"


def test_pods_go_to_nodes_of_their_pools_capacity(placed) -> None:
    bench, _ = placed
    for unit, label in (
        ("r-wide-0", "cloud.google.com/gke-spot"),
        ("r-flex-0", "cloud.google.com/gke-flex-start"),
    ):
        for pod in bench.pods(unit).values():
            assert pod["spec"]["nodeSelector"][label] == "true"
            assert {"key": label, "operator": "Equal", "value": "true", "effect": "NoSchedule"} in pod[
                "spec"
            ]["tolerations"]
    assert not [name for name in environment(bench.pods()["r-flex-0-1-0"]) if name.startswith("MEGASCALE")]

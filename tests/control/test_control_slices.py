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


def test_the_loss_of_one_host_is_mended_on_its_own_and_loses_no_other_unit(placed) -> None:
    bench, run = placed
    status = bench.serve(run)
    bench.until("all learn", lambda: bench.get("TrainingRun", "r")["status"].get("unitsSummary") == "3/3")
    before = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    bench.api.delete("Pod", bench.namespace, "r-wide-0-1-3")
    del before["r-wide-0-1-3"]
    wanted = {*(f"r-wide-0-1-{host}" for host in range(3)), "r-wide-0-2-3"}
    bench.until("a gang of four again", lambda: set(bench.pods("r-wide-0")) == wanted)
    after = {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}
    assert before.items() <= after.items()
    assert bench.get("LearnerUnit", "r-wide-0")["status"]["placement"] == 1
    assert bench.get("LearnerUnit", "r-wide-0")["status"]["incarnation"] == 2
    status["units"] = bench.report(run)["units"]
    cost = bench.until("healed", lambda: bench.get("LearnerUnit", "r-wide-0")["status"].get("lost"))
    assert cost["failures"] == 1
    assert cost["chipSeconds"] == pytest.approx(16 * cost["seconds"], abs=0.2)

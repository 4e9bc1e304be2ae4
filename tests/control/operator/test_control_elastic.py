"""A run that changes while it trains: pools, `kubectl scale`; and foreign objects in its way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from control_bench import Bench

from atoll_local.controlplane import ControlPlane

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]


def pools(bench: Bench, **units: int) -> list[dict[str, Any]]:
    """The run's pools with these units; a pool that is not named is left out."""
    known = {pool["name"]: pool for pool in bench.get("TrainingRun", "r")["spec"]["pools"]}
    new = {"accelerator": "tpu-v6e-slice", "topology": "2x2"}
    return [{**known.get(name, new), "name": name, "units": count} for name, count in units.items()]


def streams(bench: Bench, unit: str) -> tuple[int, int]:
    [pod] = bench.pods(unit).values()
    values = {item["name"]: item.get("value", "") for item in pod["spec"]["containers"][0]["env"]}
    contract = json.loads(values["ATOLL_UNIT"])
    return contract["stream"], contract["streams"]


def units_are(bench: Bench, *names: str) -> None:
    bench.until(f"the units are {names}", lambda: bench.names("LearnerUnit") == set(names))


def test_units_and_pools_come_and_go_and_no_running_unit_is_touched(
    bench: Bench, control: Callable[..., None]
) -> None:
    control("garbage-collector-controller")
    bench.operator()
    bench.learn()
    before = bench.uids()
    bench.change(pools=pools(bench, one=3, two=1, new=1))
    bench.until("the new gangs", lambda: {"r-one-2-1-0", "r-new-0-1-0"} <= set(bench.pods()))
    assert {"r-one-2-tls", "r-new-0-tls"} <= bench.names("Secret")
    assert {streams(bench, "r-one-2"), streams(bench, "r-new-0")} == {(3, 6), (4, 6)}
    old = streams(bench, "r-one-1")
    bench.kubelet.idle.add(bench.namespace)
    bench.change(pools=pools(bench, one=1, new=1))
    bench.until("their pods are told to go", lambda: set(bench.pods()) == {"r-one-0-1-0", "r-new-0-1-0"})
    grace = {pod["metadata"].get("deletionGracePeriodSeconds") for pod in bench.list("Pod")}
    assert grace <= {60, None}, "to end between two steps"
    bench.kubelet.idle.discard(bench.namespace)
    units_are(bench, "r-one-0", "r-new-0")
    bench.until("no certificate is left", lambda: "r-two-0-tls" not in bench.names("Secret"))
    bench.until("the status says so", lambda: bench.status("TrainingRun", "r")["unitsWanted"] == 2)
    bench.change(pools=pools(bench, one=2, new=1))
    bench.until("the unit is back", lambda: bench.pods("r-one-1"))
    assert streams(bench, "r-one-1") == old
    assert bench.uids("r-one-0").items() <= before.items()


def test_kubectl_scale_gives_back_every_chip_and_takes_them_again(
    bench: Bench, plane: ControlPlane, tmp_path: Path, control: Callable[..., None]
) -> None:
    control("garbage-collector-controller")
    bench.operator()
    bench.learn()

    def scale(replicas: int) -> None:
        said = plane.kubectl("-n", bench.namespace, "scale", "trun/r", f"--replicas={replicas}")
        assert "scaled" in said

    scale(0)
    bench.until("no units and no pods", lambda: not bench.names("LearnerUnit") and not bench.pods())
    bench.until_condition("TrainingRun", "r", "Ready", "True", "ScaledToZero")
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1
    scale(2)
    units_are(bench, "r-one-0", "r-one-1")
    bench.until("two are counted", lambda: bench.status("TrainingRun", "r")["units"] == 2)
    selector = bench.status("TrainingRun", "r")["selector"].replace("=", "%3D").replace(",", "%2C")
    path = bench.api.path("Pod", bench.namespace) + f"?labelSelector={selector}"
    bench.until("the selector finds their pods", lambda: len(bench.api.call("GET", path)["items"]) == 2)
    scale(4)
    units_are(bench, "r-one-0", "r-one-1", "r-one-2", "r-two-0")

    # A file that names no total does not undo a scale.
    body = bench.get("TrainingRun", "r")
    spec = {key: value for key, value in body["spec"].items() if key != "units"}
    metadata = {"name": "r", "namespace": bench.namespace}
    file = tmp_path / "run.json"
    file.write_text(
        json.dumps(
            {"apiVersion": body["apiVersion"], "kind": body["kind"], "metadata": metadata, "spec": spec}
        )
    )
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert bench.get("TrainingRun", "r")["spec"]["units"] == 4


RESTRICTED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD = {
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": "theirs", "securityContext": RESTRICTED}],
    }
}
SERVICE = {"spec": {"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"port": 80}]}}
FOREIGN = [
    ("Secret", "r-one-0-tls", {"data": {}}, "TrainingRun"),
    ("Service", "r-one-0", SERVICE, "LearnerUnit"),
    ("Pod", "r-one-0-1-0", POD, "LearnerUnit"),
]


@pytest.mark.parametrize(("kind", "name", "content", "whose"), FOREIGN, ids=[row[0] for row in FOREIGN])
def test_an_object_of_others_under_one_of_our_names_is_reported_and_left_alone(
    bench: Bench, kind: str, name: str, content: Any, whose: str
) -> None:
    bench.kubelet.idle.add(bench.namespace)
    theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}
    version = bench.create(theirs)["metadata"]["resourceVersion"]
    bench.operator()
    bench.run()
    message = bench.until_condition("TrainingRun", "r", "Degraded", "True", "ObjectRefused")
    assert f"{kind} '{name}' is not the {whose}'s: delete it, or use another name" in message
    assert bench.get(kind, name)["metadata"]["resourceVersion"] == version
    bench.delete(kind, name)
    bench.kubelet.idle.discard(bench.namespace)
    bench.until("it goes on", lambda: "r-one-0-1-0" in bench.pods())
    bench.until_condition("TrainingRun", "r", "Degraded", "False")

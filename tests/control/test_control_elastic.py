"""A run that changes while it trains: more units, fewer, other pools, `kubectl scale`, another image or quorum."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
WAIT = 60
"""Seconds; a bound for a machine that others use too."""


@pytest.fixture
def learning(bench):
    """A run whose units all learn, under one operator."""
    bench.operator()
    run = bench.run()
    bench.settled(run, UNITS)
    status = bench.serve(run)
    bench.until("all learn", lambda: run_status(bench).get("unitsSummary") == "3/3", WAIT)
    return bench, run, status


class Learners:
    """Plays the syncer's view of the units: each incarnation that has pods learns a moment later."""

    def __init__(self, bench: Any, run: Any, status: dict[str, Any]) -> None:
        self._bench, self._run, self._status = bench, run, status
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._play)

    def __enter__(self) -> Learners:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _play(self) -> None:
        while not self._stop.wait(0.05):
            pods = self._bench.pods()
            running = {
                (
                    pod["metadata"]["labels"]["atoll.dev/unit"],
                    int(pod["metadata"]["annotations"]["atoll.dev/incarnation"]),
                )
                for pod in pods.values()
                if pod["status"]["phase"] == "Running"
            }
            report = self._bench.report(self._run)["units"]
            for name, unit in report.items():
                unit["state"] = "Learning" if (name, unit["incarnation"]) in running else "Gone"
            self._status["units"] = report


def run_status(bench) -> dict[str, Any]:
    return dict(bench.get("TrainingRun", "r").get("status", {}))


def change(bench, **spec: Any) -> None:
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": spec})


def pools(bench, **units: int) -> list[dict[str, Any]]:
    """The run's pools with these units; a pool that is not named is left out."""
    known = {pool["name"]: pool for pool in bench.get("TrainingRun", "r")["spec"]["pools"]}
    new = {"accelerator": "tpu-v6e-slice", "topology": "2x2"}
    return [{**known.get(name, new), "name": name, "units": count} for name, count in units.items()]


def names(bench, kind: str) -> set[str]:
    return {item["metadata"]["name"] for item in bench.api.list(kind, bench.namespace)}


def uids(bench) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}


def environment(pod: dict[str, Any]) -> dict[str, Any]:
    values = {item["name"]: item.get("value", "") for item in pod["spec"]["containers"][0]["env"]}
    return dict(json.loads(values["ATOLL_UNIT"]))


def collect(bench) -> None:
    """The garbage collector's part: pods and Services of units that are gone."""
    owners = {unit["metadata"]["uid"] for unit in bench.api.list("LearnerUnit", bench.namespace)}
    for kind in ("Pod", "Service"):
        for item in bench.api.list(kind, bench.namespace):
            [owner] = item["metadata"].get("ownerReferences", [{}])
            if owner.get("kind") == "LearnerUnit" and owner["uid"] not in owners:
                bench.api.collect(kind, bench.namespace, item["metadata"]["name"])


def test_units_and_pools_come_and_go_and_no_running_unit_is_touched(learning) -> None:
    bench, _, _ = learning
    before = uids(bench)
    change(bench, pools=pools(bench, one=3, two=1, new=1))
    bench.until("the new gangs", lambda: {"r-one-2-1-0", "r-new-0-1-0"} <= set(bench.pods()), WAIT)
    for unit in ("r-one-2", "r-new-0"):
        assert bench.get("Secret", f"{unit}-tls")
    pods = bench.pods()
    streams = {name: (environment(pod)["stream"], environment(pod)["streams"]) for name, pod in pods.items()}
    assert {streams[name] for name in before} == {(0, 3), (1, 3), (2, 3)}
    assert {streams["r-one-2-1-0"], streams["r-new-0-1-0"]} == {(3, 6), (4, 6)}
    change(bench, pools=pools(bench, one=1, new=1))
    bench.until("the rest is gone", lambda: names(bench, "LearnerUnit") == {"r-one-0", "r-new-0"}, WAIT)
    collect(bench)
    bench.until("their pods too", lambda: set(bench.pods()) == {"r-one-0-1-0", "r-new-0-1-0"}, WAIT)
    bench.until("no certificate is left", lambda: "r-two-0-tls" not in names(bench, "Secret"), WAIT)
    assert uids(bench)["r-one-0-1-0"] == before["r-one-0-1-0"]
    bench.until("the status says so", lambda: run_status(bench)["unitsWanted"] == 2, WAIT)
    change(bench, pools=pools(bench, one=2, new=1))
    bench.until("the unit is back", lambda: bench.pods("r-one-1"), WAIT)
    [pod] = bench.pods("r-one-1").values()
    assert (environment(pod)["stream"], environment(pod)["streams"]) == streams["r-one-1-1-0"]
    assert bench.get("Secret", "r-one-1-tls")


def test_kubectl_scale_gives_back_every_chip_and_takes_them_again(learning, plane) -> None:
    bench, _, _ = learning

    def scale(replicas: int) -> str:
        return plane.kubectl("-n", bench.namespace, "scale", "trun/r", f"--replicas={replicas}")

    assert "scaled" in scale(0)
    bench.until("no units", lambda: not names(bench, "LearnerUnit"), WAIT)
    collect(bench)
    bench.until("no pods", lambda: not bench.pods(), WAIT)
    bench.until(
        "it says so",
        lambda: bench.condition("TrainingRun", "r", "Ready")[:2] == ("True", "ScaledToZero"),
        WAIT,
    )
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1
    scale(2)
    bench.until("two units", lambda: names(bench, "LearnerUnit") == {"r-one-0", "r-one-1"}, WAIT)
    bench.until("their pods", lambda: len(bench.pods()) == 2, WAIT)
    answer = bench.api.call("GET", bench.api.path("TrainingRun", bench.namespace, "r") + "/scale")
    assert answer["spec"]["replicas"] == 2
    bench.until("two are counted", lambda: run_status(bench)["units"] == 2, WAIT)
    selector = run_status(bench)["selector"].replace("=", "%3D").replace(",", "%2C")
    path = bench.api.path("Pod", bench.namespace) + f"?labelSelector={selector}"
    bench.until("the selector finds their pods", lambda: len(bench.api.call("GET", path)["items"]) == 2, WAIT)
    scale(4)
    wanted = {"r-one-0", "r-one-1", "r-one-2", "r-two-0"}
    bench.until(
        "beyond its own number the first pool grows", lambda: names(bench, "LearnerUnit") == wanted, WAIT
    )


def test_a_unit_made_by_hand_learns_and_counts_and_is_not_the_runs_to_remove(learning) -> None:
    bench, run, status = learning
    guest = unit_by_hand("guest", stream=3, streams=6)
    with Learners(bench, run, status):
        uid = bench.api.create(guest, bench.namespace)["metadata"]["uid"]
        bench.until("four learn", lambda: run_status(bench)["unitsSummary"] == "4/4", WAIT)
        owner_of = bench.get("Secret", "guest-tls")["metadata"]["ownerReferences"][0]
        assert (owner_of["kind"], owner_of["uid"]) == ("LearnerUnit", uid)
        assert {
            pod["spec"]["volumes"][1]["secret"]["secretName"] for pod in bench.pods("guest").values()
        } == {"guest-tls"}
        change(bench, units=0)
        bench.until("it alone is left", lambda: names(bench, "LearnerUnit") == {"guest"}, WAIT)
        bench.until("it is counted", lambda: run_status(bench)["unitsSummary"] == "1/1", WAIT)
        assert bench.condition("TrainingRun", "r", "Ready")[0] == "True"
    assert bench.get("LearnerUnit", "guest")["metadata"]["uid"] == uid
    bench.api.delete("TrainingRun", bench.namespace, "r")
    bench.until("its chips are given back", lambda: not bench.pods("guest"), WAIT)
    bench.until(
        "it says why",
        lambda: bench.condition("LearnerUnit", "guest", "Scheduled")[:2] == ("False", "RunNotFound"),
        WAIT,
    )


POD = {
    "spec": {
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": "theirs",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    }
}
SERVICE = {"spec": {"clusterIP": "None", "selector": {"app": "theirs"}, "ports": [{"port": 80}]}}


@pytest.mark.parametrize(
    ("kind", "name", "content", "whose"),
    [
        pytest.param("Secret", "r-one-0-tls", {"data": {}}, "TrainingRun", id="certificate"),
        pytest.param("Service", "r-one-0", SERVICE, "LearnerUnit", id="service-of-a-unit"),
        pytest.param("Pod", "r-one-0-1-0", POD, "LearnerUnit", id="pod"),
    ],
)
def test_what_somebody_else_made_under_one_of_our_names_is_told_and_left_alone(
    bench, kind, name, content, whose
) -> None:
    bench.kubelet.idle.add(bench.namespace)
    theirs = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, **content}
    version = bench.api.create(theirs, bench.namespace)["metadata"]["resourceVersion"]
    bench.operator()
    bench.run()
    bench.until(
        "it says so", lambda: bench.condition("TrainingRun", "r", "Degraded")[1] == "ObjectRefused", WAIT
    )
    message = bench.condition("TrainingRun", "r", "Degraded")[2]
    assert f"{kind} '{name}' is not the {whose}'s: delete it, or use another name" in message
    assert bench.get(kind, name)["metadata"]["resourceVersion"] == version
    bench.api.delete(kind, bench.namespace, name)
    bench.kubelet.idle.discard(bench.namespace)
    bench.until("it goes on", lambda: "r-one-0-1-0" in bench.pods(), WAIT)
    bench.until(
        "it says that too", lambda: bench.condition("TrainingRun", "r", "Degraded")[0] == "False", WAIT
    )


def test_a_unit_that_is_removed_has_a_minute_to_end_between_two_steps(learning, collector) -> None:
    bench, _, _ = learning
    bench.kubelet.idle.add(bench.namespace)
    change(bench, pools=pools(bench, one=1))
    going = bench.until(
        "their pods are told to go",
        lambda: (
            {
                pod["metadata"]["name"]: pod["metadata"]["deletionGracePeriodSeconds"]
                for pod in bench.api.list("Pod", bench.namespace)
                if "deletionTimestamp" in pod["metadata"]
            }
            if set(bench.pods()) == {"r-one-0-1-0"}
            else None
        ),
        WAIT,
    )
    assert going == {"r-one-1-1-0": 60, "r-two-0-1-0": 60, "r-two-0-1-1": 60}
    bench.until("one is left", lambda: names(bench, "LearnerUnit") == {"r-one-0"}, WAIT)


def unit_by_hand(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "atoll.dev/v1alpha1",
        "kind": "LearnerUnit",
        "metadata": {"name": name},
        "spec": {
            "run": "r", "pool": "guests", "accelerator": "tpu-v6e-slice", "topology": "2x2", "batch": 8, **spec
        },
    }  # fmt: skip


def test_a_file_that_names_no_total_does_not_undo_a_scale(learning, tmp_path: Path, plane) -> None:
    bench, _, _ = learning
    bench.api.call(
        "PATCH",
        bench.api.path("TrainingRun", bench.namespace, "r") + "/scale",
        {"spec": {"replicas": 1}},
        "application/merge-patch+json",
    )
    bench.until("one unit", lambda: names(bench, "LearnerUnit") == {"r-one-0"}, WAIT)
    body = bench.get("TrainingRun", "r")
    file = tmp_path / "run.json"
    spec = {key: value for key, value in body["spec"].items() if key != "units"}
    metadata = {"name": "r", "namespace": bench.namespace}
    file.write_text(
        json.dumps({**{key: body[key] for key in ("apiVersion", "kind")}, "metadata": metadata, "spec": spec})
    )
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(file))
    assert bench.get("TrainingRun", "r")["spec"]["units"] == 1

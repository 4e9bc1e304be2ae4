"""A run that changes while it trains: more units, fewer, other pools, `kubectl scale`, another image or quorum."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from atoll_runtime.contract import RunContract, parse_run

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
WAIT = 60
"""Seconds; a bound for a machine that others use too."""


@pytest.fixture
def learning(bench):
    """A run whose units all learn, under one operator."""
    bench.operator()
    return bench, *begun(bench)


def begun(bench) -> tuple[dict[str, Any], dict[str, Any]]:
    """The run and its syncer's status, to be changed in place."""
    run = bench.run()
    bench.settled(run, UNITS)
    status = bench.serve(run)
    bench.until("all learn", lambda: run_status(bench).get("unitsSummary") == "3/3", WAIT)
    return run, status


class Learners:
    """Plays the syncer's view of the units: each incarnation that has pods learns a moment later."""

    def __init__(self, bench: Any, run: Any, status: dict[str, Any]) -> None:
        self._bench, self._run, self._status = bench, run, status
        self.fewest = 999
        """Units that learnt at once, by the operator's own words, at least."""
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
            states = [
                condition["status"]
                for unit in self._bench.api.list("LearnerUnit", self._bench.namespace)
                for condition in unit.get("status", {}).get("conditions", [])
                if condition["type"] == "Learning"
            ]
            self.fewest = min(self.fewest, states.count("True"))


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
        lambda: bench.condition("TrainingRun", "r", "Ready")[:2] == ("False", "ScaledToZero"),
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
        pytest.param("ConfigMap", "r-config", {"data": {}}, "TrainingRun", id="contract"),
        pytest.param("Service", "r-syncer", SERVICE, "TrainingRun", id="service-of-the-syncer"),
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


def test_fewer_units_than_the_quorum_are_told_in_words(learning) -> None:
    bench, _, status = learning
    change(bench, quorum={"min": 3})
    change(bench, units=2)
    bench.until("two units", lambda: names(bench, "LearnerUnit") == {"r-one-0", "r-one-1"}, WAIT)
    status["units"].pop("r-two-0")
    words = "2 of 2 units learn, 3 are needed"
    condition = bench.until(
        "it says why",
        lambda: (c := bench.condition("TrainingRun", "r", "Ready")) and words in c[2] and c,
        WAIT,
    )
    assert condition[:2] == ("False", "QuorumNotMet")


IMAGE = "atoll.dev/runtime:new"
VOLUMES = [{"name": "corpus", "persistentVolumeClaim": {"claimName": "corpus", "readOnly": True}}]
MOUNTS = [{"name": "corpus", "mountPath": "/mnt/corpus", "readOnly": False}]


@pytest.mark.parametrize(
    ("spec", "has_it"),
    [
        pytest.param({"image": IMAGE}, lambda pod: pod["containers"][0]["image"] == IMAGE, id="image"),
        pytest.param(
            {"podTemplate": {"volumes": VOLUMES, "volumeMounts": MOUNTS}},
            lambda pod: {"corpus"} < {volume["name"] for volume in pod["volumes"]},
            id="volume",
        ),
    ],
)
def test_what_pods_are_made_of_is_rolled_out_unit_by_unit_and_never_below_all_but_one(
    learning, spec, has_it
) -> None:
    bench, run, status = learning
    with Learners(bench, run, status) as learners:
        change(bench, **spec, quorum={"min": 2})
        bench.until("all have it", lambda: all(has_it(pod["spec"]) for pod in bench.pods().values()), 120)
        bench.until("all learn", lambda: run_status(bench).get("unitsSummary") == "3/3", WAIT)
        bench.until("the status says so", lambda: run_status(bench).get("unitsUpdated") == 3, WAIT)
    assert learners.fewest == 2
    assert {name.rsplit("-", 2)[1] for name in bench.pods()} == {"2"}
    assert [bench.get("LearnerUnit", unit)["status"]["restartCount"] for unit in UNITS] == [0, 0, 0]
    assert has_it(bench.get("StatefulSet", "r-syncer")["spec"]["template"]["spec"])


def test_a_roll_out_that_would_break_the_quorum_waits_and_says_why(learning) -> None:
    bench, _, _ = learning
    change(bench, quorum={"min": 3}, image="atoll.dev/runtime:new")
    message = "quorum.min 3 of 3 units spares none"
    bench.until("it says why", lambda: message in bench.condition("TrainingRun", "r", "Progressing")[2], WAIT)
    before = uids(bench)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert uids(bench) == before
    change(bench, quorum={"min": 2})
    bench.until("one goes", lambda: uids(bench) != before, WAIT)


def test_a_roll_out_waits_while_the_syncer_has_lost_its_units_and_does_not_change_all_at_once(
    learning,
) -> None:
    bench, run, status = learning
    for unit in status["units"].values():
        unit.update(state="Gone", hosts=0)
    bench.until("none learns", lambda: run_status(bench).get("unitsSummary") == "0/3", WAIT)
    before = uids(bench)
    change(bench, quorum={"min": 2}, image=IMAGE)
    bench.until(
        "it says why", lambda: "0 of 3 do" in bench.condition("TrainingRun", "r", "Progressing")[2], WAIT
    )
    until = time.monotonic() + 1
    while time.monotonic() < until:
        assert uids(bench) == before
    with Learners(bench, run, status):
        bench.until("all have it", lambda: run_status(bench).get("unitsUpdated") == 3, WAIT)
        bench.until("all learn", lambda: run_status(bench).get("unitsSummary") == "3/3", WAIT)


def test_a_unit_made_anew_while_the_syncer_is_away_waits_for_the_number_of_its_next_incarnation(
    learning, collector
) -> None:
    bench, _, status = learning
    path = f"{bench.namespace}/r/0"
    del bench.syncers.statuses[path]
    bench.until(
        "it is missed", lambda: bench.condition("TrainingRun", "r", "Ready")[1] == "SyncerUnavailable", WAIT
    )
    bench.api.delete("LearnerUnit", bench.namespace, "r-one-0")
    bench.until(
        "it says why",
        lambda: bench.condition("LearnerUnit", "r-one-0", "Scheduled")[1] == "SyncerUnavailable",
        WAIT,
    )
    bench.until("the old pod is gone", lambda: not bench.pods("r-one-0"), WAIT)
    status["units"]["r-one-0"].update(incarnation=4, state="Gone", hosts=0)
    bench.syncers.statuses[path] = status
    bench.until("it goes on above what was", lambda: list(bench.pods("r-one-0")) == ["r-one-0-5-0"], WAIT)
    assert bench.get("LearnerUnit", "r-one-0")["status"]["restartCount"] == 0


def test_the_quorum_changes_live_by_a_restart_of_the_syncer_alone(learning) -> None:
    bench, _, _ = learning
    before = uids(bench)
    old = annotation(bench)
    change(bench, quorum={"min": 2}, checkpoint={"intervalSteps": 7})
    bench.until("the contract", lambda: contract(bench).quorum.min == 2, WAIT)
    bench.until("the syncer is started anew", lambda: annotation(bench) != old, WAIT)
    assert contract(bench).checkpoint.interval_steps == 7
    assert uids(bench) == before


def annotation(bench) -> str:
    metadata = bench.get("StatefulSet", "r-syncer")["spec"]["template"]["metadata"]
    return str(metadata["annotations"]["atoll.dev/contract"])


def contract(bench) -> RunContract:
    return parse_run(bench.get("ConfigMap", "r-config")["data"]["run.json"])


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


def test_suspension_gives_the_chips_back_and_then_saves_the_step_at_which_the_run_goes_on(learning) -> None:
    bench, _, status = learning
    path = f"{bench.namespace}/r/0"
    status.update(globalStep=42, checkpoint={"newestStep": 40, "uri": "gs://bucket/run", "current": False})
    bench.until("step 42", lambda: run_status(bench)["globalStep"] == 42, WAIT)
    bench.syncers.reluctant.add(path)
    change(bench, suspend=True)
    bench.until("the cut is ordered", lambda: bench.syncers.orders.get(path) == [42], WAIT)
    assert not bench.pods(), "the chips are given back before anything is saved"
    assert bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1
    assert run_status(bench)["phase"] == "Suspending"
    assert bench.condition("TrainingRun", "r", "Suspended")[:2] == ("False", "Suspending")
    status["checkpoint"] = {"newestStep": 42, "uri": "gs://bucket/run", "current": True}
    bench.until("Suspended", lambda: bench.condition("TrainingRun", "r", "Suspended")[0] == "True", WAIT)
    bench.until("no syncer", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0, WAIT)
    done = run_status(bench)
    assert (done["phase"], done["checkpoint"]["step"], done["globalStep"]) == ("Suspended", 42, 42)
    assert "checkpoint of step 42" in bench.condition("TrainingRun", "r", "Suspended")[2]
    change(bench, suspend=False)
    bench.until("the pods are back", lambda: len(bench.pods()) == 4, WAIT)
    bench.until("the syncer too", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 1, WAIT)
    assert run_status(bench)["globalStep"] == 42
    assert bench.syncers.orders[path] == [42]


def test_an_operator_that_is_killed_while_a_run_is_being_suspended_goes_on_with_it(bench) -> None:
    first = bench.operator()
    _, status = begun(bench)
    path = f"{bench.namespace}/r/0"
    bench.syncers.reluctant.add(path)
    change(bench, suspend=True)
    bench.until("the cut is ordered", lambda: bench.syncers.orders.get(path), WAIT)
    first.kill()
    bench.syncers.reluctant.discard(path)
    bench.operator()
    bench.until("Suspended", lambda: bench.condition("TrainingRun", "r", "Suspended")[0] == "True", WAIT)
    assert run_status(bench)["checkpoint"]["step"] == 10 == status["globalStep"]


def test_a_run_whose_units_are_out_of_restarts_fails_below_its_quorum_when_the_spec_says_so(learning) -> None:
    bench, _, _ = learning
    change(bench, quorum={"min": 3}, recovery={"maxRestarts": 0})
    bench.until("the operator has heard of it", lambda: run_status(bench)["observedGeneration"] == 2, WAIT)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0", message="AppError: broken")
    bench.until("QuorumLost", lambda: bench.condition("TrainingRun", "r", "Ready")[1] == "QuorumLost", WAIT)
    message = bench.condition("TrainingRun", "r", "Ready")[2]
    assert "1 of 3 units are out of restarts, 2 are left, quorum.min is 3; the run waits" in message
    change(bench, recovery={"belowQuorum": "Fail", "belowQuorumSeconds": 1})
    bench.until(
        "Failed", lambda: bench.condition("TrainingRun", "r", "Failed")[:2] == ("True", "QuorumLost"), WAIT
    )
    bench.until("the chips are given back", lambda: not bench.pods(), WAIT)
    bench.until(
        "the journal is kept", lambda: bench.get("StatefulSet", "r-syncer")["spec"]["replicas"] == 0, WAIT
    )


def test_what_a_failure_cost_stands_in_the_status_of_unit_and_run(learning) -> None:
    bench, run, status = learning
    with Learners(bench, run, status):
        bench.kubelet.fail(bench.namespace, "r-two-0-1-0", message="AppError: broken")
        cost = bench.until("healed", lambda: bench.get("LearnerUnit", "r-two-0")["status"].get("lost"), WAIT)
        bench.until("the run's", lambda: run_status(bench).get("lost") == cost, WAIT)
    assert cost["failures"] == 1
    assert cost["chipSeconds"] == pytest.approx(8 * cost["seconds"], abs=0.1)
    assert bench.get("LearnerUnit", "r-two-0")["status"]["lastHealSeconds"] == cost["seconds"]

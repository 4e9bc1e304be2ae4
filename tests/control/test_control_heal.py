"""A unit that loses a pod: its gang, and no other pod, comes back with the next incarnation."""

from __future__ import annotations

import random
import time

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
DISRUPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}


@pytest.fixture
def placed(bench):
    """A run with all its pods, under one operator."""
    operator = bench.operator()
    run = bench.run()
    bench.settled(run, UNITS)
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    return bench, run, operator


def uids(bench) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}


def healed(bench, unit: str, incarnation: int, hosts: int) -> None:
    """Exactly the gang of this incarnation is left, placed."""
    wanted = {f"{unit}-{incarnation}-{host}" for host in range(hosts)}
    bench.until(f"{sorted(wanted)} alone", lambda: set(bench.pods(unit)) == wanted)


def mended(bench, unit: str, before: dict[str, str], lost: str, new: str) -> None:
    """One pod is another than before, and all of the unit are of the second incarnation."""
    kept = {name: uid for name, uid in before.items() if name.startswith(f"{unit}-") and name != lost}

    def done() -> bool:
        pods = bench.pods(unit)
        told = {pod["metadata"]["annotations"]["atoll.dev/incarnation"] for pod in pods.values()}
        return (told, set(pods)) == ({"2"}, {*kept, new})

    bench.until(f"{new} is there in the place of {lost} and all were told", done)
    assert {name: uid for name, uid in uids(bench).items() if name in kept} == kept
    assert bench.get("LearnerUnit", unit)["status"]["placement"] == 1


def others_kept(bench, before: dict[str, str], unit: str) -> None:
    after = uids(bench)
    for name, uid in before.items():
        if not name.startswith(f"{unit}-"):
            assert after.get(name) == uid


@pytest.mark.parametrize(
    ("lose", "reason", "alone"),
    [
        pytest.param(lambda b, pod: b.kubelet.fail(b.namespace, pod, 1), "AppError", True, id="error"),
        pytest.param(
            lambda b, pod: b.kubelet.fail(b.namespace, pod, 137, reason="OOMKilled"), "OutOfMemory", True, id="memory"
        ),
        pytest.param(
            lambda b, pod: b.kubelet.fail(b.namespace, pod, 64, "LossNotFinite: loss is nan at step 7"),
            "LossNotFinite", False,
            id="its-own-words",
        ),
        pytest.param(lambda b, pod: b.api.delete("Pod", b.namespace, pod), "PodDeleted", True, id="deleted"),
        pytest.param(
            lambda b, pod: b.api.delete("Pod", b.namespace, pod, grace=0), "PodDeleted", True, id="deleted-by-force"
        ),
        pytest.param(
            lambda b, pod: b.kubelet.status(
                b.namespace, pod, {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no chips"}
            ),
            "AdmissionRejected", False,
            id="rejected-by-the-kubelet",
        ),
        pytest.param(
            lambda b, pod: b.kubelet.status(
                b.namespace, pod,
                {"phase": "Failed", "conditions": [DISRUPTED]},
            ),
            "Preempted", False,
            id="preempted",
        ),
    ],
)  # fmt: skip
def test_one_lost_pod_brings_its_gang_back_and_touches_no_other(placed, lose, reason, alone) -> None:
    bench, _, _ = placed
    before = uids(bench)
    lose(bench, "r-two-0-1-1")
    if alone:
        mended(bench, "r-two-0", before, "r-two-0-1-1", "r-two-0-2-1")
    else:
        healed(bench, "r-two-0", 2, hosts=2)
    others_kept(bench, before, "r-two-0")
    status = bench.get("LearnerUnit", "r-two-0")["status"]
    assert status["lastFailure"]["reason"] == reason
    assert status["lastFailure"]["pod"] == "r-two-0-1-1"
    assert [(item["reason"], item["inPlace"]) for item in status["restarts"]] == [(reason, alone)]
    assert [item.get("replaced", 0) for item in status["restarts"]] == [int(alone)]
    assert bench.condition("LearnerUnit", "r-two-0", "Healing")[:2] == ("True", reason)
    bench.until(
        "an Event", lambda: reason in {event["reason"] for event in bench.api.list("Event", bench.namespace)}
    )


def test_an_eviction_by_the_api_heals(placed) -> None:
    bench, _, _ = placed
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "r-one-0-1-0"}}
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, "r-one-0-1-0") + "/eviction", eviction)
    healed(bench, "r-one-0", 2, hosts=1)


def test_the_seconds_of_a_heal_are_those_until_the_first_merge(placed) -> None:
    bench, run, _ = placed
    status = bench.serve(run)
    bench.until("learning", lambda: bench.condition("LearnerUnit", "r-one-0", "Learning")[0] == "True")
    failed = time.monotonic()
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    healed(bench, "r-one-0", 2, hosts=1)
    assert bench.condition("LearnerUnit", "r-one-0", "Learning")[0] == "False"
    bench.until(
        "Degraded", lambda: bench.condition("TrainingRun", "r", "Degraded")[:2] == ("True", "UnitHealing")
    )
    status["units"]["r-one-0"] |= {"incarnation": 2, "seededStep": 5, "firstMergeTime": time.time() + 2}
    seconds = bench.until(
        "healed", lambda: bench.get("LearnerUnit", "r-one-0")["status"].get("lastHealSeconds")
    )
    assert 1 < seconds < 3 + time.monotonic() - failed  # the kubelet tells whole seconds
    assert bench.condition("LearnerUnit", "r-one-0", "Seeded")[2].endswith("step 5")
    assert bench.condition("LearnerUnit", "r-one-0", "Healing")[0] == "False"
    bench.until(
        "in the run", lambda: bench.get("TrainingRun", "r")["status"].get("lastHealSeconds") == seconds
    )
    assert bench.get("TrainingRun", "r")["status"]["restarts"] == 1


def test_a_unit_without_budget_is_failed_and_the_run_goes_on(bench) -> None:
    bench.operator()
    run = bench.run(recovery={"maxRestarts": 1})
    bench.settled(run, UNITS)
    bench.serve(run)
    bench.until("running", lambda: bench.get("TrainingRun", "r")["status"]["phase"] == "Running")
    before = uids(bench)
    bench.kubelet.fail(bench.namespace, "r-one-0-1-0")
    healed(bench, "r-one-0", 2, hosts=1)
    bench.kubelet.fail(bench.namespace, "r-one-0-2-0", 64, "DataMissing: no meta.json")
    bench.until("Failed", lambda: bench.get("LearnerUnit", "r-one-0")["status"]["phase"] == "Failed")
    condition = bench.until(
        "Degraded",
        lambda: (c := bench.condition("TrainingRun", "r", "Degraded"))[:2] == ("True", "UnitFailed") and c,
    )
    assert "DataMissing" in condition[2]
    assert "no meta.json" in condition[2]
    assert bench.condition("TrainingRun", "r", "Ready")[0] == "True"
    others_kept(bench, before, "r-one-0")


def test_a_unit_that_finds_no_node_waits_and_says_so(bench) -> None:
    bench.kubelet.idle.add(bench.namespace)
    bench.operator()
    run = bench.run(units=1)
    bench.settled(run, ["r-one-0"])
    message = "0/5 nodes are available: 5 Insufficient google.com/tpu."
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    bench.kubelet.status(bench.namespace, "r-one-0-1-0", {"conditions": [condition]})
    bench.until(
        "it says why",
        lambda: (
            bench.condition("LearnerUnit", "r-one-0", "Scheduled")[:2] == ("False", "CapacityUnavailable")
        ),
    )
    assert bench.get("LearnerUnit", "r-one-0")["status"]["incarnation"] == 1
    bench.until("the run says so", lambda: message in bench.get("TrainingRun", "r")["status"]["message"])


def test_pods_that_the_api_server_refuses_are_a_condition(bench) -> None:
    bench.api.delete("ServiceAccount", bench.namespace, "default")  # without it no pod is admitted
    bench.operator()
    bench.run(units=1)
    bench.until(
        "it says why",
        lambda: bench.condition("LearnerUnit", "r-one-0", "Scheduled")[:2] == ("False", "ObjectRefused"),
    )
    assert "service account" in bench.get("LearnerUnit", "r-one-0")["status"]["message"]


@pytest.mark.parametrize("seed", range(6))
def test_an_operator_killed_at_any_moment_leaves_one_gang(placed, seed: int) -> None:
    bench, _, operator = placed
    chance = random.Random(seed)
    before = uids(bench)
    bench.kubelet.fail(bench.namespace, "r-two-0-1-0")
    for _ in range(2):
        time.sleep(chance.uniform(0.0, 0.06))
        operator.kill()
        operator.start()
        time.sleep(chance.uniform(0.6, 1.1))
    mended(bench, "r-two-0", before, "r-two-0-1-0", "r-two-0-2-0")
    others_kept(bench, before, "r-two-0")
    assert bench.get("LearnerUnit", "r-two-0")["status"]["restartCount"] == 1


def test_an_operator_killed_while_a_run_is_new_makes_each_gang_once(bench) -> None:
    chance = random.Random(7)
    operator = bench.operator()
    time.sleep(0.7)
    run = bench.run()
    for _ in range(3):
        time.sleep(chance.uniform(0.0, 0.15))
        operator.kill()
        operator.start()
        time.sleep(chance.uniform(0.5, 1.0))
    bench.settled(run, UNITS)
    assert set(bench.pods()) == {"r-one-0-1-0", "r-one-1-1-0", "r-two-0-1-0", "r-two-0-1-1"}
    assert [bench.get("LearnerUnit", unit)["status"]["incarnation"] for unit in UNITS] == [1, 1, 1]


def test_a_second_operator_does_not_make_a_second_incarnation(placed) -> None:
    bench, _, _ = placed
    bench.operator()
    time.sleep(1.5)  # both watch now; the assertion below holds either way
    before = uids(bench)
    for incarnation in (1, 2, 3):
        bench.kubelet.fail(bench.namespace, f"r-two-0-{incarnation}-1", 64)
        bench.api.patch(
            "LearnerUnit", bench.namespace, "r-two-0", {"status": {"restarts": []}}, "/status"
        )  # no back-off in this test
        healed(bench, "r-two-0", incarnation + 1, hosts=2)
        bench.until(
            "they run", lambda: all(p["status"]["phase"] == "Running" for p in bench.pods("r-two-0").values())
        )
    others_kept(bench, before, "r-two-0")
    assert bench.get("LearnerUnit", "r-two-0")["status"]["restartCount"] == 3


def test_after_a_restart_of_the_api_server_the_operator_goes_on(placed, plane) -> None:
    bench, _, operator = placed
    before = uids(bench)
    plane.restart_apiserver()
    bench.kubelet.fail(bench.namespace, "r-one-1-1-0")
    healed(bench, "r-one-1", 2, hosts=1)
    others_kept(bench, before, "r-one-1")
    assert operator.process.poll() is None

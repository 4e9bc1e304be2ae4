"""Restart in place: the containers restart in their pods, where the processes alone failed."""

from __future__ import annotations

import time

import pytest

from atoll_operator.cluster import Cluster
from atoll_operator.kube.errors import Conflict, NotFound
from atoll_operator.kube.login import load
from atoll_operator.metrics.process import Metrics

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNIT = "r-two-0"
PODS = [f"{UNIT}-1-{host}" for host in (0, 1)]
PATIENCE = 60
EXIT_RESTART = 66


@pytest.fixture
def placed(bench):
    """A run whose units all learn, under one operator; the syncer's status, to be changed in place."""
    operator = bench.operator()
    run = bench.run()
    bench.settled(run, ["r-one-0", "r-one-1", UNIT])
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    report = bench.serve(run)
    bench.until("all learn", lambda: all(learning(bench, name) for name in report["units"]), PATIENCE)
    return bench, report, operator


def learning(bench, unit: str) -> bool:
    return bench.condition("LearnerUnit", unit, "Learning")[0] == "True"


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def ends(
    bench, pod: str, incarnation: int, exit_code: int = 1, words: str = "", reason: str = "Error"
) -> None:
    """The container ends, having been of this incarnation, and the kubelet starts it again."""
    message = f"incarnation {incarnation}\n{words}"
    ended = {
        "exitCode": exit_code,
        "reason": reason,
        "message": message,
        "startedAt": now(),
        "finishedAt": now(),
    }
    known = bench.get("Pod", pod)["status"]["containerStatuses"][0]
    container = known | {
        "restartCount": known["restartCount"] + 1,
        "state": {"running": {"startedAt": now()}},
        "lastState": {"terminated": ended},
    }
    bench.kubelet.status(bench.namespace, pod, {"containerStatuses": [container]})


def told(bench) -> dict[str, str]:
    """The incarnation that each pod of the unit was told."""
    return {
        name: pod["metadata"]["annotations"]["atoll.dev/incarnation"]
        for name, pod in bench.pods(UNIT).items()
    }


def uids(bench) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in bench.pods().items()}


def events(bench) -> set[str]:
    """Their reasons."""
    return {event["reason"] for event in bench.api.list("Event", bench.namespace)}


def status(bench) -> dict:
    return bench.get("LearnerUnit", UNIT)["status"]


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        pytest.param({"words": "OSError: the disk is full"}, "OSError", id="its-own-words"),
        pytest.param({"exit_code": 139}, "AppError", id="signal"),
        pytest.param({"exit_code": 137, "reason": "OOMKilled"}, "OutOfMemory", id="memory"),
    ],
)
def test_a_host_that_crashes_restarts_in_place_with_its_peer_and_no_pod_is_replaced(
    placed, ending, reason
) -> None:
    bench, report, _ = placed
    before = uids(bench)
    ends(bench, PODS[1], 1, **ending)
    bench.until("both are told", lambda: told(bench) == dict.fromkeys(PODS, "2"), PATIENCE)
    found = status(bench)
    assert (found["incarnation"], found["placement"]) == (2, 1)
    assert (found["lastFailure"]["reason"], found["lastFailure"]["pod"]) == (reason, PODS[1])
    assert [(item["reason"], item["inPlace"]) for item in found["restarts"]] == [(reason, True)]
    half = ("False", "Restarting", "1 of 2 containers restarted in place")
    bench.until("half", lambda: bench.condition("LearnerUnit", UNIT, "PodsReady") == half, PATIENCE)
    ends(bench, PODS[0], 1, EXIT_RESTART)
    bench.until("ready", lambda: bench.condition("LearnerUnit", UNIT, "PodsReady")[0] == "True", PATIENCE)
    assert not learning(bench, UNIT), "the new incarnation was not merged yet"
    report["units"][UNIT] |= {"incarnation": 2, "firstMergeTime": time.time()}
    bench.until("healed", lambda: status(bench).get("lastHealSeconds") is not None, PATIENCE)
    assert uids(bench) == before
    assert (status(bench)["incarnation"], status(bench)["mergedIncarnation"]) == (2, 2)
    bench.until("Events", lambda: {reason, "RestartInPlace", "Healed"} <= events(bench), PATIENCE)


def test_a_hang_ends_in_place(bench) -> None:
    bench.operator()
    run = bench.run(recovery={"hangSeconds": 2, "startupSeconds": 30})
    bench.settled(run, [UNIT])
    bench.serve(run)
    bench.until("told", lambda: told(bench) == dict.fromkeys(PODS, "2"), PATIENCE)
    assert status(bench)["lastFailure"]["reason"] == "Hang"


def test_a_crash_on_a_node_that_is_about_to_go_makes_a_new_gang_elsewhere(placed) -> None:
    bench, _, _ = placed
    disrupted = [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}]
    bench.kubelet.status(bench.namespace, PODS[0], {"conditions": disrupted})
    ends(bench, PODS[1], 1)
    bench.until("new pods", lambda: status(bench)["placement"] == 2 and bench.is_whole(UNIT), PATIENCE)
    assert [item["inPlace"] for item in status(bench)["restarts"]] == [False]


def test_after_two_restarts_in_place_without_a_merge_the_pods_are_made_anew(placed) -> None:
    bench, _, _ = placed
    for number in (1, 2):
        ends(bench, PODS[1], number)
        bench.until("told", lambda: told(bench) == dict.fromkeys(PODS, str(number + 1)), PATIENCE)  # noqa: B023
        ends(bench, PODS[0], number, EXIT_RESTART)
    ends(bench, PODS[1], 3)
    bench.until("a new gang", lambda: set(bench.pods(UNIT)) == {f"{UNIT}-4-0", f"{UNIT}-4-1"}, PATIENCE)
    assert told(bench) == dict.fromkeys(bench.pods(UNIT), "4")
    found = status(bench)
    assert [item["inPlace"] for item in found["restarts"]] == [True, True, False]
    assert (found["incarnation"], found["placement"], found["restartCount"]) == (4, 4, 3)


def test_an_operator_that_died_before_it_told_all_pods_tells_them_when_it_is_back(placed) -> None:
    bench, _, operator = placed
    ends(bench, PODS[1], 1)
    bench.until("told", lambda: told(bench) == dict.fromkeys(PODS, "2"), PATIENCE)
    operator.kill()
    before = uids(bench)
    behind = {"metadata": {"annotations": {"atoll.dev/incarnation": "1"}}}
    bench.api.patch("Pod", bench.namespace, PODS[0], behind)
    bench.operator()
    bench.until("told again", lambda: told(bench) == dict.fromkeys(PODS, "2"), PATIENCE)
    assert (status(bench)["incarnation"], uids(bench)) == (2, before)


def test_a_failure_while_the_operator_is_down_is_mended_in_place_when_it_is_back(placed) -> None:
    bench, _, operator = placed
    operator.kill()
    before = uids(bench)
    ends(bench, PODS[0], 1, 134)
    ends(bench, PODS[1], 1)
    bench.operator()
    bench.until("told", lambda: told(bench) == dict.fromkeys(PODS, "2"), PATIENCE)
    assert uids(bench) == before


def test_an_operator_that_is_started_again_does_not_say_of_a_sound_run_that_it_was_ill(placed) -> None:
    def said() -> dict[str, tuple[str, str]]:
        found = bench.get("TrainingRun", "r")["status"]["conditions"]
        return {
            item["type"]: (item["status"], item["lastTransitionTime"])
            for item in found
            if item["type"] in ("Ready", "Progressing", "Degraded")
        }

    bench, report, operator = placed
    bench.until("ready", lambda: bench.condition("TrainingRun", "r", "Ready")[0] == "True", PATIENCE)
    before = said()
    assert [before[name][0] for name in ("Ready", "Progressing", "Degraded")] == ["True", "True", "False"]
    operator.kill()
    report["globalStep"] += 1
    bench.operator()
    bench.until(
        "the syncer is heard again",
        lambda: bench.get("TrainingRun", "r")["status"]["globalStep"] == report["globalStep"],
        PATIENCE,
    )
    assert said() == before


def test_where_in_place_is_not_wanted_each_failure_makes_new_pods(bench) -> None:
    bench.operator()
    run = bench.run(recovery={"inPlace": False})
    bench.settled(run, [UNIT])
    bench.until("all run", lambda: all(pod["status"]["phase"] == "Running" for pod in bench.pods().values()))
    ends(bench, PODS[1], 1)
    bench.until("new pods", lambda: status(bench)["placement"] == 2 and bench.is_whole(UNIT), PATIENCE)
    assert set(bench.pods(UNIT)) == {f"{UNIT}-2-0", f"{UNIT}-2-1"}


async def test_another_pod_of_the_same_name_is_not_told(bench, operator_kubeconfig) -> None:
    pod = {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
        "spec": {
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "main", "image": "runtime",
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    }  # fmt: skip
    uid = bench.api.create(pod, bench.namespace)["metadata"]["uid"]
    async with Cluster(load({"KUBECONFIG": str(operator_kubeconfig)}), Metrics()) as cluster:
        with pytest.raises(Conflict):
            await cluster.annotate("Pod", bench.namespace, "p", "another", {"atoll.dev/incarnation": "7"})
        with pytest.raises(NotFound):
            await cluster.annotate("Pod", bench.namespace, "q", uid, {"atoll.dev/incarnation": "7"})
        assert "annotations" not in bench.get("Pod", "p")["metadata"]
        await cluster.annotate("Pod", bench.namespace, "p", uid, {"atoll.dev/incarnation": "7"})
    assert bench.get("Pod", "p")["metadata"]["annotations"] == {"atoll.dev/incarnation": "7"}

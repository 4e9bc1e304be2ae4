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


def test_a_host_that_crashes_restarts_in_place_with_its_peer_and_no_pod_is_replaced(placed) -> None:
    bench, report, _ = placed
    before = uids(bench)
    ends(bench, PODS[1], 1, words="OSError: the disk is full")
    bench.until("both are told", lambda: told(bench) == dict.fromkeys(PODS, "2"), PATIENCE)
    found = status(bench)
    assert (found["incarnation"], found["placement"]) == (2, 1)
    assert (found["lastFailure"]["reason"], found["lastFailure"]["pod"]) == ("OSError", PODS[1])
    assert [(item["reason"], item["inPlace"]) for item in found["restarts"]] == [("OSError", True)]
    half = ("False", "Restarting", "1 of 2 containers restarted in place")
    bench.until("half", lambda: bench.condition("LearnerUnit", UNIT, "PodsReady") == half, PATIENCE)
    ends(bench, PODS[0], 1, EXIT_RESTART)
    bench.until("ready", lambda: bench.condition("LearnerUnit", UNIT, "PodsReady")[0] == "True", PATIENCE)
    assert not learning(bench, UNIT), "the new incarnation was not merged yet"
    report["units"][UNIT] |= {"incarnation": 2, "firstMergeTime": time.time()}
    bench.until("healed", lambda: status(bench).get("lastHealSeconds") is not None, PATIENCE)
    assert uids(bench) == before
    assert (status(bench)["incarnation"], status(bench)["mergedIncarnation"]) == (2, 2)
    bench.until("Events", lambda: {"OSError", "RestartInPlace", "Healed"} <= events(bench), PATIENCE)


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

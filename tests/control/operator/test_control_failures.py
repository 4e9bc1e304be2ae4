"""Failures in which the API server or a controller of Kubernetes has a part. test_control_refusals.py has the pods that
somebody refuses; test_control_placement.py the controllers that take pods from lost nodes; test_control_leader.py the
operator that is killed. All failures are rows of the table in tests/support/operator/memory_failures.py, or scenes of
memory_scenes.py; four of the rows are told here too."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from control_bench import Bench
from memory_accidents import Accidents
from memory_failures import BY_NAME, HOSTS, UNIT, WITNESS

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
ROWS = ("container says why", "deleted by force", "evicted by the API", "rejected by the kubelet")


class RealServer:
    """As much of the memory world's server as an accident of a pod needs, on the real one."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.get, self.delete = bench.get, bench.delete

    def change(self, body: Any) -> None:
        self._bench.kubelet.status(self._bench.namespace, body["metadata"]["name"], body["status"])


class RealCluster(Accidents):
    """Accidents of the memory world that befall pods of a real API server."""

    def __init__(self, server: Any) -> None:
        self.server = server


@pytest.mark.parametrize("name", ROWS)
def test_a_failure_has_the_consequences_that_it_has_in_the_memory_world(bench: Bench, name: str) -> None:
    row = BY_NAME[name]
    bench.operator()
    bench.learn(units=1)  # a pod that is gone before its hosts have met is made again, and no failure
    before, witness = by_host(bench), bench.uids(WITNESS)
    bench.kubelet.idle.add(bench.namespace)  # a pod that is gone before the operator sees it says nothing
    if name == "evicted by the API":
        evict(bench, before[1]["metadata"]["name"])
    else:
        server = RealServer(bench)
        row.act(SimpleNamespace(server=server, cluster=RealCluster(server)), before[1])
    failure = bench.until("a failure", lambda: bench.unit(UNIT).get("lastFailure"))
    bench.kubelet.idle.discard(bench.namespace)
    bench.until("it runs again", lambda: told(bench) == ["2", "2"] and bench.run_pods(UNIT))
    assert (failure["reason"], failure.get("exitCode")) == (row.reason, row.exit_code)
    assert row.words in failure["message"]
    after = bench.uids(UNIT).values()
    replaced = [host for host, pod in enumerate(before) if pod["metadata"]["uid"] not in after]
    assert replaced == HOSTS[row.replaced]
    assert bench.uids(WITNESS) == witness


def evict(bench: Bench, pod: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}}
    bench.api.call("POST", bench.api.path("Pod", bench.namespace, pod) + "/eviction", body)


def by_host(bench: Bench) -> list[Any]:
    return sorted(bench.pods(UNIT).values(), key=lambda pod: str(pod["metadata"]["labels"]["atoll.dev/host"]))


def told(bench: Bench) -> list[str]:
    return [pod["metadata"]["annotations"]["atoll.dev/incarnation"] for pod in by_host(bench)]

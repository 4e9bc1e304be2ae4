"""Units that contend for node pools: the real scheduler, the operator with and without sight of nodes, kwok's nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from objects import RUN

from atoll_local.controlplane import ControlPlane
from atoll_local.kwok import EXIT_CODE, Kwok, tpu_node

pytestmark = [pytest.mark.control, pytest.mark.timeout(400)]
WAIT = 120
HOSTS = 4
NUMBERS = itertools.count(1)
POOL = "cloud.google.com/gke-nodepool"
HOLDS = "atoll.dev/holds"
NEW_GANGS = {"inPlace": False}
"""Each failure makes one."""
ROLES = "/apis/rbac.authorization.k8s.io/v1"


class Yard:
    """One namespace, the node pools of one test, and an operator."""

    def __init__(self, api: Any, kwok: Kwok, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self._kwok = kwok
        self.nodes: dict[str, str] = {}
        """Names to pools."""

    def add_pools(self, *pools: str) -> None:
        """Each has the nodes of one slice."""
        fresh = {f"{self.namespace}-{pool}-{host}": pool for pool in pools for host in range(HOSTS)}
        self._kwok.add(
            tpu_node(
                name,
                pool=pool,
                accelerator="tpu-v6e-slice",
                topology="4x4",
                machine="ct6e-standard-4t",
                chips=4,
            )
            for name, pool in fresh.items()
        )
        self.nodes |= fresh

    def run(self, units: int, **spec: Any) -> None:
        pool = {"name": "p", "accelerator": "tpu-v6e-slice", "topology": "4x4", "units": units}
        body = {**RUN, "spec": {**RUN["spec"], "pools": [pool], **spec}}
        self.api.create(body, self.namespace)

    def add_stranger(self, name: str, node: str) -> None:
        """A pod that has all chips of a node, and is nobody's learner."""
        chips = {"limits": {"google.com/tpu": "4"}}
        spec = {
            "nodeName": node,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none", "resources": chips}],
        }
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        self.api.create(body, self.namespace)

    def learners(self) -> list[dict[str, Any]]:
        """Pods that have not ended and that nobody deletes."""
        return [
            pod
            for pod in self.api.list("Pod", self.namespace)
            if pod["metadata"].get("labels", {}).get("atoll.dev/component") == "learner"
            and "deletionTimestamp" not in pod["metadata"]
            and pod["status"]["phase"] not in ("Failed", "Succeeded")
        ]

    def places(self) -> dict[str, list[str]]:
        """Units to the pools in which their hosts are."""
        found: dict[str, list[str]] = {}
        for pod in self.learners():
            if node := pod["spec"].get("nodeName"):
                found.setdefault(pod["metadata"]["labels"]["atoll.dev/unit"], []).append(self.nodes[node])
        return found

    def whole(self, units: int) -> bool:
        """So many units have a pool each, with one gang, and no other unit has a host anywhere."""
        places = self.places()
        labels = [pod["metadata"]["labels"] for pod in self.learners()]
        gangs = {(each["atoll.dev/unit"], each["atoll.dev/placement"]) for each in labels}
        if len(gangs) > len({unit for unit, _ in gangs}):
            return False
        pools = {pool for held in places.values() for pool in held}
        return len(places) == len(pools) == units and all(
            len(held) == HOSTS and len(set(held)) == 1 for held in places.values()
        )

    def waiting(self) -> set[str]:
        """Units that say that there is no room for them."""
        return {
            unit["metadata"]["name"]
            for unit in self.api.list("LearnerUnit", self.namespace)
            for item in unit.get("status", {}).get("conditions", [])
            if (item["type"], item["reason"]) == ("Scheduled", "CapacityUnavailable")
        }

    def fail(self, name: str) -> None:
        self.api.patch("Pod", self.namespace, name, {"metadata": {"annotations": {EXIT_CODE: "1"}}})

    def claim(self, name: str) -> None:
        """A claim that many nodes may read, and its volume, which is on none of them."""
        volume = f"{self.namespace}-{name}"
        size, modes = {"storage": "1Gi"}, ["ReadOnlyMany"]
        share = {"driver": "filestore.example", "volumeHandle": name, "readOnly": True}
        body: dict[str, Any] = {
            "metadata": {"name": volume},
            "spec": {"capacity": size, "accessModes": modes, "csi": share, "storageClassName": ""},
        }
        self.api.call("POST", "/api/v1/persistentvolumes", body)
        spec = {
            "resources": {"requests": size},
            "accessModes": modes,
            "volumeName": volume,
            "storageClassName": "",
        }
        path = f"/api/v1/namespaces/{self.namespace}/persistentvolumeclaims"
        self.api.call("POST", path, {"metadata": {"name": name}, "spec": spec})

    def gang(self, unit: str) -> int:
        return int(self.api.get("LearnerUnit", self.namespace, unit).get("status", {}).get("placement", 0))

    def until(self, what: str, check: Callable[[], Any]) -> None:
        deadline = time.monotonic() + WAIT
        while not check():
            assert time.monotonic() < deadline, f"not within {WAIT} s: {what}\n{self.describe()}"
            time.sleep(0.1)

    def describe(self) -> str:
        lines = [f"whole: {self.places()}, waiting: {sorted(self.waiting())}"]
        for pod in self.api.list("Pod", self.namespace):
            metadata, spec = pod["metadata"], pod["spec"]
            lines.append(
                f"{metadata['name']}: {pod['status']['phase']} on {spec.get('nodeName')} for "
                f"{spec.get('nodeSelector', {}).get(POOL)} deleted {metadata.get('deletionTimestamp')}"
            )
        return "\n".join(lines)


@pytest.fixture(scope="module")
def scheduled(
    tmp_path_factory: pytest.TempPathFactory, installed: Callable[[ControlPlane], None]
) -> Iterator[tuple[ControlPlane, Kwok]]:
    """The real controllers and scheduler, patient with nodes: a busy machine is late with their leases."""
    folder = tmp_path_factory.mktemp("scheduled")
    with ControlPlane(folder, controllers=True, fast_failure=False) as plane:
        installed(plane)
        with Kwok(plane) as kwok:
            yield plane, kwok


@pytest.fixture
def yard(
    scheduled: tuple[ControlPlane, Kwok], api: Any, employ: Any, request: pytest.FixtureRequest
) -> Iterator[Yard]:
    """Its operator sees nodes, unless the test's parameter is `blind`."""
    plane, kwok = scheduled
    mine = type(api)(plane)
    namespace = f"yard-{next(NUMBERS)}"
    mine.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    account = "atoll-operator"
    if getattr(request, "param", "") == "blind":
        account = f"blind-{namespace}"
        _blind(mine, account)
    one = Yard(mine, kwok, namespace)
    try:
        with employ(plane, namespace, account):
            yield one
    finally:
        mine.call("DELETE", f"/api/v1/namespaces/{namespace}")
        kwok.remove(one.nodes)


def _blind(api: Any, account: str) -> None:
    """A service account with the operator's rights but for nodes, which are a role of their own."""
    meta = {"metadata": {"name": account}}
    api.call("POST", "/api/v1/namespaces/atoll-system/serviceaccounts", meta)
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "atoll-operator"},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": "atoll-system"}],
    }
    api.call("POST", f"{ROLES}/clusterrolebindings", meta | binding)


@pytest.mark.parametrize("yard", ["sighted", pytest.param("blind", marks=pytest.mark.long)], indirect=True)
def test_units_that_contend_for_pools_have_a_whole_one_or_none(yard: Yard) -> None:
    yard.add_pools("red", "green", "blue")
    yard.run(units=5, recovery=NEW_GANGS)
    yard.until("three have a pool, two wait", lambda: yard.whole(3) and len(yard.waiting()) == 2)
    assert not yard.waiting() & set(yard.places())

    gangs = {unit: yard.gang(unit) for unit in yard.places()}
    for unit, gang in gangs.items():
        yard.fail(f"{unit}-{gang}-2")
    yard.until("all three were replaced", lambda: all(yard.gang(unit) > gang for unit, gang in gangs.items()))
    yard.until("three have a pool again, two wait", lambda: yard.whole(3) and len(yard.waiting()) == 2)

    yard.add_pools("amber")
    yard.until("a fourth has the new pool", lambda: yard.whole(4) and len(yard.waiting()) == 1)


@pytest.mark.long
def test_a_host_that_has_the_pod_of_somebody_else_is_waited_for(yard: Yard) -> None:
    yard.add_pools("red")
    yard.add_stranger("stranger", f"{yard.namespace}-red-3")
    yard.run(units=1)
    yard.until("it waits for the last host", lambda: yard.waiting() == {"r-p-0"})
    places = [pod["spec"]["nodeName"] for pod in yard.learners() if "nodeName" in pod["spec"]]
    assert sorted(places) == [f"{yard.namespace}-red-{host}" for host in range(3)]
    yard.api.delete("Pod", yard.namespace, "stranger")
    yard.until("it has all hosts", lambda: yard.whole(1))
    assert yard.gang("r-p-0") == 1


@pytest.mark.long
def test_a_slice_all_of_whose_pods_failed_comes_back_to_its_pool(yard: Yard) -> None:
    yard.add_pools("red", "green", "blue")
    yard.run(units=1)
    yard.until("it has a pool", lambda: yard.whole(1))
    home = yard.places()["r-p-0"][0]
    old = {pod["metadata"]["uid"] for pod in yard.learners()}
    for host in range(HOSTS):
        yard.fail(f"r-p-0-1-{host}")
    yard.until("four new pods", lambda: not old & {pod["metadata"]["uid"] for pod in yard.learners()})
    yard.until("it is back", lambda: yard.whole(1))
    assert yard.places()["r-p-0"] == [home] * HOSTS
    assert yard.gang("r-p-0") == 1, "it has kept its hosts"


@pytest.mark.parametrize("yard", ["sighted", pytest.param("blind", marks=pytest.mark.long)], indirect=True)
def test_pods_that_are_lost_come_back_to_their_own_hosts_and_no_other_is_touched(yard: Yard) -> None:
    yard.add_pools("red", "green", "blue")
    yard.run(units=2)
    yard.until("both have a pool", lambda: yard.whole(2))
    homes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in yard.learners()}
    lost = {"r-p-0-1-0", "r-p-0-1-2", "r-p-1-1-3"}  # a leader among them
    new = {"r-p-0-2-0", "r-p-0-2-2", "r-p-1-2-3"}
    yard.fail("r-p-0-1-0")
    yard.fail("r-p-0-1-2")
    yard.api.delete("Pod", yard.namespace, "r-p-1-1-3")
    wanted = homes.keys() - lost | new
    yard.until(
        "they are back",
        lambda: {pod["metadata"]["name"] for pod in yard.learners()} == wanted and yard.whole(2),
    )
    places = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in yard.learners()}
    assert {name: places[name] for name in homes.keys() - lost} == {
        name: homes[name] for name in homes.keys() - lost
    }
    assert {places[name] for name in new} == {homes[name] for name in lost}
    assert places["r-p-1-2-3"] == homes["r-p-1-1-3"]
    assert [yard.gang(f"r-p-{number}") for number in range(2)] == [1, 1]
    holding = {pod["metadata"]["name"] for pod in yard.learners() if HOLDS in pod["metadata"]["labels"]}
    assert {"r-p-0-2-0", "r-p-1-1-0"} <= holding, "no other slice comes into their pools"


def test_a_pod_whose_host_was_taken_meanwhile_has_its_gang_look_elsewhere(yard: Yard) -> None:
    yard.add_pools("red", "green")
    yard.run(units=1)
    yard.until("it has a pool", lambda: yard.whole(1))
    home = yard.places()["r-p-0"][0]
    for number, node in enumerate(node for node, pool in yard.nodes.items() if pool == home):
        yard.add_stranger(f"stranger-{number}", node)
    yard.fail("r-p-0-1-1")
    yard.until("another gang is whole", lambda: yard.gang("r-p-0") > 1 and yard.whole(1))
    assert yard.places()["r-p-0"][0] != home
    restarts = yard.api.get("LearnerUnit", yard.namespace, "r-p-0")["status"]["restarts"]
    assert [(item["reason"], item["inPlace"]) for item in restarts] == [
        ("AppError", True),
        ("CapacityUnavailable", False),
    ]


@pytest.mark.long
def test_a_slice_goes_where_all_its_hosts_are(yard: Yard) -> None:
    yard.add_pools("red", "green", "blue")
    lost = [node for node, pool in yard.nodes.items() if pool in ("red", "blue") and node.endswith("-0")]
    for node in lost:
        yard.api.call("DELETE", f"/api/v1/nodes/{node}")
    yard.run(units=1)
    yard.until("it has the whole pool", lambda: yard.whole(1))
    assert set(yard.places()["r-p-0"]) == {"green"}
    yard.api.call("DELETE", f"/api/v1/nodes/{yard.namespace}-green-1")
    yard.until("the next gang's leader", lambda: yard.gang("r-p-0") == 2 and yard.places().get("r-p-0"))
    yard.add_pools("amber")  # until now no pool had all its hosts
    yard.until("it moves to the new one", lambda: yard.whole(1))
    assert set(yard.places()["r-p-0"]) == {"amber"}
    assert yard.api.get("LearnerUnit", yard.namespace, "r-p-0")["status"]["restartCount"] == 1


def test_a_unit_says_which_claim_is_not_there_and_has_its_hosts_once_it_is(yard: Yard) -> None:
    yard.add_pools("red")
    volume = {"name": "corpus", "persistentVolumeClaim": {"claimName": "corpus", "readOnly": True}}
    mount = {"name": "corpus", "mountPath": "/mnt/corpus"}
    data = {**RUN["spec"]["data"], "uri": "file:///mnt/corpus/books"}
    yard.run(units=1, data=data, podTemplate={"volumes": [volume], "volumeMounts": [mount]})
    yard.until("it waits", lambda: yard.waiting() == {"r-p-0"})
    message = yard.api.get("LearnerUnit", yard.namespace, "r-p-0")["status"]["message"]
    assert 'persistentvolumeclaim "corpus" not found' in message
    yard.claim("corpus")
    yard.until("all hosts have the claim and a node", lambda: yard.whole(1) and not yard.waiting())
    status = yard.api.get("LearnerUnit", yard.namespace, "r-p-0")["status"]
    assert (status["restartCount"], status["placement"]) == (0, 1)

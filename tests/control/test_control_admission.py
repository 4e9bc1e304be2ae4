"""Who may create, change and evict pods of runs: the chart's admission policies and a syncer's budget, on a real API
server with real controllers, a real scheduler and the real operator. The tenant may do everything in its namespace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from apiserver import Api, Object, Refusal, with_token
from control_bench import Bench
from objects import RUN

from atoll_local.controlplane import ControlPlane
from atoll_local.errors import ClusterError
from atoll_local.kwok import EXIT_CODE, Kwok, node, tpu_node
from atoll_local.process import wait_for

SHARDS = 2
LEARNER, SYNCERS = "r-p-0-1-0", ("r-syncer-0", "r-syncer-1")
HOLDS = {"atoll.dev/holds": "stolen.0"}
POD_SPEC = {"containers": [{"name": "main", "image": "none"}], "automountServiceAccountToken": False}
OTHER_IMAGE = {"containers": [{"name": "main", "image": "other"}]}
LESS = {"containers": [{"name": "main", "resources": {"requests": {"memory": "1Mi"}}}]}
STRATEGIC = "application/strategic-merge-patch+json"


class Town(Bench):
    """A namespace with an operator and a run whose pods all run; `tenant` is the owner of the namespace."""

    patience = 90.0
    tenant: Bench
    plane: ControlPlane
    kwok: Kwok
    node: str
    """Of the shards."""

    def drain(self, seconds: int) -> None:
        """Drains the node of the shards as an administrator does; raises ClusterError if that takes longer."""
        pods = ("--pod-selector=atoll.dev/component", "--delete-emptydir-data")
        self.plane.kubectl("drain", self.node, *pods, f"--timeout={seconds}s")

    def ready(self, *names: str) -> bool:
        pods = (pod["status"].get("conditions", []) for name, pod in self.pods().items() if name in names)
        ready = [each["status"] for pod in pods for each in pod if each["type"] == "Ready"]
        return ready == ["True"] * len(names)


@pytest.fixture
def town(
    controlled: tuple[ControlPlane, Kwok],
    settle: Callable[..., AbstractContextManager[Town]],
    tmp_path: Path,
) -> Iterator[Town]:
    plane, kwok = controlled
    with settle(plane, Town) as one:
        space = one.namespace
        one.plane, one.kwok, one.node = plane, kwok, f"{space}-cpu"
        chips = {"accelerator": "tpu-v6e-slice", "topology": "2x2", "machine": "ct6e-standard-4t"}
        nodes = [
            node(one.node),
            *(tpu_node(f"{space}-{pool}", pool=f"{space}-{pool}", chips=4, **chips) for pool in "ab"),
        ]
        volumes = [f"{space}-{shard}" for shard in range(SHARDS)]
        kwok.add(nodes)
        for name in volumes:
            size = {"capacity": {"storage": "100Gi"}, "accessModes": ["ReadWriteOnce"]}
            body = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
            one.create({**body, "spec": {**size, "hostPath": {"path": "/nowhere"}}})
        plane.kubectl("-n", space, "create", "serviceaccount", "owner")
        everything = ("--clusterrole=cluster-admin", f"--serviceaccount={space}:owner")
        plane.kubectl("-n", space, "create", "rolebinding", "owner", *everything)
        kubeconfig = with_token(plane, one.api, tmp_path / "tenant", "owner", space)
        one.tenant = Bench(Api(plane, kubeconfig), space)
        one.create({**RUN, "spec": {**RUN["spec"], "syncer": {"shards": SHARDS}}})
        one.until("all pods run", lambda: one.ready(LEARNER, "r-p-1-1-0", *SYNCERS))
        one.until("its rights count", lambda: one.tenant.list("Pod"))
        yield one
    one.api.delete("Namespace", "", one.namespace)
    kwok.remove([*(each["metadata"]["name"] for each in nodes), f"{one.node}-other"])
    for name in volumes:
        one.delete("PersistentVolume", name)


def pod(name: str, **labels: str) -> Object:
    meta = {"name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": POD_SPEC}


def workload(kind: str, name: str) -> Object:
    """One whose pods would hold a node pool."""
    labels = {"app": name, **HOLDS}
    template = {"metadata": {"labels": labels}, "spec": POD_SPEC}
    spec = {"selector": {"matchLabels": {"app": name}}, "template": template}
    spec |= {"serviceName": name} if kind == "StatefulSet" else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def test_others_may_neither_make_pods_of_runs_nor_change_what_the_operator_trusts(town: Town) -> None:
    tenant = town.tenant
    tenant.create(pod("plain"))
    # Without its kubelet's word on resources, the API server takes a resize for one that the node cannot do.
    [status] = town.status("Pod", SYNCERS[0])["containerStatuses"]
    told = {"containerStatuses": [status | {"resources": {"requests": {"memory": "1Gi"}}}]}
    town.api.patch("Pod", town.namespace, SYNCERS[0], {"status": told}, "/status")
    unit = {key: value for key, value in town.get("LearnerUnit", "r-p-1").items() if key != "status"}
    owned = {"ownerReferences": unit["metadata"]["ownerReferences"]}
    tenant.create(unit | {"metadata": {"name": "mine"}})
    labels = lambda **change: {"metadata": {"labels": change}}  # noqa: E731
    notes = lambda **change: {"metadata": {"annotations": change}}  # noqa: E731
    attempts: dict[str, Callable[[], Any]] = {
        "hold a pool": lambda: tenant.create(pod("thief", **HOLDS)),
        "be a syncer": lambda: tenant.create(pod("false", **{"atoll.dev/component": "syncer"})),
        "let a controller make one": lambda: tenant.create(workload("StatefulSet", "thief")),
        "become one": lambda: tenant.patch("Pod", "plain", labels(**HOLDS)),
        "become one by its status": lambda: tenant.api.call(
            "PATCH", tenant.api.path("Pod", town.namespace, "plain") + "/status", labels(**HOLDS), STRATEGIC
        ),
        "become one when it is bound": lambda: tenant.api.call(
            "POST", tenant.api.path("Pod", town.namespace, "plain") + "/binding",
            {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "plain", "labels": HOLDS},
             "target": {"kind": "Node", "name": town.node}},
        ),
        "hide it": lambda: tenant.patch("Pod", LEARNER, labels(**{"app.kubernetes.io/managed-by": None})),
        "move it": lambda: tenant.patch("Pod", LEARNER, labels(**{"atoll.dev/unit": "r-p-1"})),
        "take its host away": lambda: tenant.patch("Pod", LEARNER, labels(**{"atoll.dev/host": None})),
        "age it": lambda: tenant.patch("Pod", LEARNER, notes(**{"atoll.dev/incarnation": "7"})),
        "strip it": lambda: tenant.patch("Pod", LEARNER, notes(**{"atoll.dev/contract": None})),
        "end it": lambda: tenant.patch("Pod", LEARNER, {"spec": {"activeDeadlineSeconds": 1}}),
        "run another image": lambda: tenant.api.call(
            "PATCH", tenant.api.path("Pod", town.namespace, LEARNER), {"spec": OTHER_IMAGE}, STRATEGIC
        ),
        "take its memory": lambda: tenant.api.call(
            "PATCH", tenant.api.path("Pod", town.namespace, SYNCERS[0]) + "/resize", {"spec": LESS}, STRATEGIC
        ),
        "make a unit of the run's own": lambda: tenant.create(unit | {"metadata": {"name": "r-p-9", **owned}}),
        "give the run a unit of its own": lambda: tenant.patch("LearnerUnit", "mine", {"metadata": owned}),
        "run another image in shards": lambda: tenant.api.call(
            "PATCH", tenant.api.path("StatefulSet", town.namespace, "r-syncer"),
            {"spec": {"template": {"spec": OTHER_IMAGE}}}, STRATEGIC,
        ),
    }  # fmt: skip
    who = f"system:serviceaccount:{town.namespace}:owner may not "
    wrong = {}
    for what, attempt in attempts.items():
        try:
            attempt()
            wrong[what] = "was allowed"
        except Refusal as refusal:
            said = str(refusal)
            advice = "Remove these labels" in said or "instead" in said
            if refusal.status != 403 or who not in said or not advice:
                wrong[what] = said
    assert wrong == {}

    tenant.create(workload("Deployment", "thief"))
    refused = "kube-system:replicaset-controller may not create a pod with the labels atoll.dev/holds"
    town.until("it has no pods", lambda: refused in str(town.get("Deployment", "thief")["status"]))
    # What the policies leave to others.
    tenant.patch("Pod", LEARNER, {"metadata": {"labels": {"team": "a"}, "annotations": {"team": "a"}}})
    tenant.patch("Pod", "plain", labels(app="x"))
    tenant.delete("Pod", "plain", 0)
    # The verb is what counts, and counts in the whole cluster.
    role, member = (
        "--clusterrole=atoll-operator-pods-atoll-system",
        f"--serviceaccount={town.namespace}:owner",
    )
    town.plane.kubectl("create", "clusterrolebinding", town.namespace, role, member)
    town.until("it may", lambda: tenant.create(pod("granted", **HOLDS)))
    town.plane.kubectl("delete", "clusterrolebinding", town.namespace)


def test_the_types_in_the_expressions_are_sound(controlled: tuple[ControlPlane, Kwok]) -> None:
    api, path = Api(controlled[0]), "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    checked = lambda: [each.get("status", {}).get("typeChecking") for each in api.call("GET", path)["items"]]  # noqa: E731
    wait_for("a controller's check", lambda: None not in checked(), 60)
    assert checked() == [{}] * 4, "no warnings"


def test_a_run_heals_drains_and_goes_with_kubernetes_own_accounts(town: Town) -> None:
    town.patch("Pod", LEARNER, {"metadata": {"annotations": {EXIT_CODE: "1"}}})
    town.until("the operator heals a unit", lambda: town.ready("r-p-0-2-0"))
    allowed = lambda: town.status("PodDisruptionBudget", "r-syncer").get("disruptionsAllowed")  # noqa: E731
    town.until("the budget counts", lambda: allowed() == 1)
    with pytest.raises(ClusterError, match=r"when evicting.*timeout reached"):
        town.drain(seconds=5)
    homes = lambda: [town.get("Pod", name)["spec"].get("nodeName", "") for name in SYNCERS]  # noqa: E731
    assert sorted(homes()) == ["", town.node], "one shard has no other node, so the other one stays"
    town.kwok.add([node(f"{town.node}-other")])
    town.drain(seconds=60)
    town.until("both have moved", lambda: town.ready(*SYNCERS) and {*homes()} == {f"{town.node}-other"})
    town.delete("TrainingRun", "r")
    kinds = ("TrainingRun", "LearnerUnit", "StatefulSet", "PodDisruptionBudget", "Pod")
    town.until("nothing is left", lambda: not any(town.list(kind) for kind in kinds))

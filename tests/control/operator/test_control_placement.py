"""Units that contend for node pools and lose nodes: the real scheduler and controllers, the operator with and without
sight of nodes, kwok's nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
from control_bench import Bench
from objects import RUN

from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import kubectl
from atoll_local.kwok import EXIT_CODE, LEASE_SECONDS, MANAGED, Kwok, tpu_node

pytestmark = pytest.mark.timeout(400)
HOSTS = 4
UNIT = "r-p-0"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
RENEWAL_SECONDS = LEASE_SECONDS / 4
"""A node may have been renewed just before it was lost."""
NEW_GANGS = {"inPlace": False}
"""Each failure makes one."""


class Yard(Bench):
    """One namespace, the node pools of one test, and an operator."""

    patience = 120.0
    kwok: Kwok
    nodes: dict[str, str]
    """Names to pools."""

    def add_pools(self, *pools: str) -> None:
        fresh = {f"{self.namespace}-{pool}-{host}": pool for pool in pools for host in range(HOSTS)}
        kind = {"accelerator": "tpu-v6e-slice", "topology": "4x4", "machine": "ct6e-standard-4t"}
        self.kwok.add(tpu_node(name, pool=pool, chips=4, **kind) for name, pool in fresh.items())
        self.nodes |= fresh

    def apply(self, units: int, **spec: Any) -> None:
        pool = {"name": "p", "accelerator": "tpu-v6e-slice", "topology": "4x4", "units": units}
        self.create({**RUN, "spec": {**RUN["spec"], "pools": [pool], **spec}})

    def learners(self) -> dict[str, dict[str, Any]]:
        """Pods that have not ended and that nobody deletes."""
        return {
            name: pod
            for name, pod in self.pods().items()
            if pod["metadata"].get("labels", {}).get("atoll.dev/component") == "learner"
            and pod["status"]["phase"] not in ("Failed", "Succeeded")
        }

    def homes(self) -> dict[str, str]:
        found = {name: pod["spec"].get("nodeName", "") for name, pod in self.learners().items()}
        return {name: node for name, node in found.items() if node}

    def places(self) -> dict[str, list[str]]:
        """Units to the pools in which their hosts are."""
        learners, found = self.learners(), dict[str, list[str]]()
        for name, node in self.homes().items():
            if name in learners:
                unit = learners[name]["metadata"]["labels"]["atoll.dev/unit"]
                found.setdefault(unit, []).append(self.nodes[node])
        return found

    def whole(self, units: int) -> bool:
        """So many units have a pool each, with one gang, and no other unit has a host anywhere."""
        places = self.places()
        labels = [pod["metadata"]["labels"] for pod in self.learners().values()]
        gangs = {(each["atoll.dev/unit"], each["atoll.dev/placement"]) for each in labels}
        pools = {pool for held in places.values() for pool in held}
        alone = all(len(held) == HOSTS and len(set(held)) == 1 for held in places.values())
        return len(gangs) == len({unit for unit, _ in gangs}) and len(places) == len(pools) == units and alone

    def waiting(self) -> set[str]:
        """Units that say that there is no room for them."""
        waits = ("False", "CapacityUnavailable")
        units = self.names("LearnerUnit")
        return {name for name in units if self.condition("LearnerUnit", name, "Scheduled")[:2] == waits}

    def fail(self, name: str) -> None:
        self.patch("Pod", name, {"metadata": {"annotations": {EXIT_CODE: "1"}}})

    def silence(self, node: str) -> None:
        """Kwok leaves the node and its Lease, which somebody else holds, alone."""
        self.patch("Node", node, {"metadata": {"annotations": dict.fromkeys(MANAGED)}})
        held = {"spec": {"holderIdentity": "nobody", "leaseDurationSeconds": 3600}}
        self.api.call("PATCH", f"{LEASES}/{node}", held, "application/merge-patch+json")

    def gang(self, unit: str = UNIT) -> int:
        """The newest placement of which it has a pod."""
        labels = [pod["metadata"]["labels"] for pod in self.learners().values()]
        own = [int(each["atoll.dev/placement"]) for each in labels if each["atoll.dev/unit"] == unit]
        return max(own, default=0)


@pytest.fixture
def yard(
    controlled: tuple[ControlPlane, Kwok],
    settle: Callable[..., AbstractContextManager[Yard]],
    request: pytest.FixtureRequest,
) -> Iterator[Yard]:
    """Its operator sees nodes, unless the test's parameter is `blind`."""
    plane, kwok = controlled
    account = "atoll-operator"
    if getattr(request, "param", "") == "blind":
        account = "blind"
        _blind(plane, account)
    with settle(plane, Yard, account) as one:
        one.kwok, one.nodes = kwok, {}
        yield one
    one.api.delete("Namespace", "", one.namespace)
    kwok.remove(one.nodes)


def _blind(plane: ControlPlane, account: str) -> None:
    """A service account with the operator's rights but for nodes, which are a role of their own."""
    member = f"--serviceaccount=atoll-system:{account}"
    for what in (
        ("serviceaccount", account, "--namespace=atoll-system"),
        ("clusterrolebinding", account, "--clusterrole=atoll-operator", member),
        ("clusterrolebinding", f"{account}-pods", "--clusterrole=atoll-operator-pods-atoll-system", member),
    ):
        kubectl(plane.kubeconfig, "create", *what, check=False)  # an earlier test may have made it


SIGHT = pytest.mark.parametrize(
    "yard", ["sighted", pytest.param("blind", marks=pytest.mark.long)], indirect=True
)


@SIGHT
def test_units_that_contend_for_pools_have_a_whole_one_or_none(yard: Yard) -> None:
    yard.add_pools("red", "green", "blue")
    yard.apply(units=5, recovery=NEW_GANGS)
    yard.until("three have a pool, two wait", lambda: yard.whole(3) and len(yard.waiting()) == 2)
    assert not yard.waiting() & set(yard.places())

    gangs = {unit: yard.gang(unit) for unit in yard.places()}
    for unit, gang in gangs.items():
        yard.fail(f"{unit}-{gang}-2")
    yard.until("all three were replaced", lambda: all(yard.gang(unit) > gang for unit, gang in gangs.items()))
    yard.until("three have a pool again, two wait", lambda: yard.whole(3) and len(yard.waiting()) == 2)

    yard.add_pools("amber")
    yard.until("a fourth has the new pool", lambda: yard.whole(4) and len(yard.waiting()) == 1)


@SIGHT
@pytest.mark.parametrize("loss", [pytest.param("silent", marks=pytest.mark.long), "gone"])
def test_with_kubernetes_own_time_outs_a_lost_node_is_replaced_within_a_minute(yard: Yard, loss: str) -> None:
    yard.add_pools("red", "green")
    yard.apply(units=1)
    yard.until("it has a pool", lambda: yard.whole(1))
    victim, node = min(yard.homes().items())
    lost = time.monotonic()
    if loss == "silent":
        yard.silence(node)
    else:
        yard.delete("Node", node)
    yard.until("another gang is whole", lambda: yard.gang() > 1 and yard.whole(1))
    print(f"replaced {time.monotonic() - lost:.1f} s after the loss")
    assert time.monotonic() - lost < 60 + RENEWAL_SECONDS
    assert (failure := yard.unit(UNIT)["lastFailure"])["reason"] == "NodeLost"
    assert (failure["pod"], yard.unit(UNIT)["restartCount"]) == (victim, 1)
    if loss == "silent":
        zombie = yard.get("Pod", victim)  # nobody reports that it has ended, and nobody forces it
        assert "deletionTimestamp" in zombie["metadata"]

"""Where the pods of a unit go, and units that contend for node pools; the scheduler obeys the pods' own specs."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objects import TWO_HOSTS
from scene import TWO_SLICES, Scene, learning
from scene_cluster import NOW, Object

from atoll_operator.api.group import NODE_POOL
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import format_time
from atoll_operator.plan.unit.placement import (
    GIVE_WAY_SECONDS,
    HOSTS_SECONDS,
    RETURN_SECONDS,
    SLICES_SECONDS,
)

CORDONED = {"unschedulable": True}
LEAVING = {"cloud.google.com/active-node-maintenance": "ONGOING"}
KINDS = ["reconcile", "reconcile", "crash", "schedule", "schedule", "fail", "delete", "kubelets", "wait"]


def pool_of(pod: Object) -> str:
    return str(pod["spec"]["nodeSelector"].get(NODE_POOL, ""))


def holds(pod: Object) -> bool:
    return "atoll.dev/holds" in pod["metadata"]["labels"]


def terms(pod: Object, kind: str) -> list[Object]:
    rules = pod["spec"].get("affinity", {}).get(kind, {})
    return list(rules.get("requiredDuringSchedulingIgnoredDuringExecution", []))


def test_the_leader_chooses_a_pool_alone_and_the_others_follow_with_its_name() -> None:
    scene = Scene().rest()
    assert scene.names() == ["1-0"]
    leader = scene.pod(0)
    assert (pool_of(leader), holds(leader), terms(leader, "podAffinity")) == ("", True, [])
    scene.bind(0, "blue-0").rest()
    for host in (1, 2, 3):
        assert (pool_of(scene.pod(host)), holds(scene.pod(host))) == ("blue", False)
        assert "affinity" not in scene.pod(host)["spec"]


def test_a_pool_that_the_user_names_is_taken_as_given() -> None:
    scene = Scene(node_selector={NODE_POOL: "mine"}).rest()
    assert {(pool_of(pod), holds(pod)) for pod in scene.pods.values()} == {("mine", True)}
    scene.unschedulable(0)
    assert not scene.look(after=1e6).advance


def test_a_single_host_may_go_anywhere() -> None:
    scene = Scene(topology="2x2", machine_type=None).rest()
    assert "affinity" not in scene.pod(0)["spec"] and not holds(scene.pod(0))


def test_leaders_of_units_of_one_name_in_two_namespaces_keep_apart_and_pods_of_one_unit_do_not() -> None:
    one, other = Scene(), Scene(name="other")
    first, second = one.rest().pod(0), other.rest().pod(0)
    one.fail(0).rest()
    assert selects(first, "podAntiAffinity", second) and selects(second, "podAntiAffinity", first)
    assert not selects(one.pod(0), "podAntiAffinity", first)
    assert terms(first, "podAntiAffinity")[0]["namespaceSelector"] == {}, "of all namespaces"


def avoided(scene: Scene) -> str:
    rules = scene.pod(0)["spec"]["affinity"]["nodeAffinity"]
    return str(rules.get("preferredDuringSchedulingIgnoredDuringExecution", ""))


def test_a_leader_rather_avoids_pools_that_lack_hosts_or_still_have_old_pods_of_the_unit() -> None:
    scene = Scene().put_node("red-1", "red", spec=CORDONED).rest()
    assert "red" in avoided(scene) and "blue" not in avoided(scene)
    scene = learning(recovery={"in_place": False}).delete(1).rest()
    assert "red" in avoided(scene), "an old pod still runs there"


@pytest.mark.parametrize("trouble", [{"spec": CORDONED}, {"ready": "Unknown"}, {"labels": LEAVING}])
def test_no_pod_is_replaced_on_a_node_that_does_not_stay(trouble: dict[str, Any]) -> None:
    scene = learning().fail(1).change_node(1, **trouble)
    assert scene.look().status.placement == 2


def ends(scene: Scene) -> float | None:
    """After how many seconds the unit leaves its place; None: never."""
    plan = scene.look()
    assert not plan.advance
    if plan.wake is None or not scene.look(after=plan.wake - scene.now).advance:
        assert not scene.look(after=1e6).advance
        return None
    moved = scene.plan.status
    assert (moved.placement, moved.restarts[-1].reason) == (
        scene.status.incarnation + 1,
        "CapacityUnavailable",
    )
    assert moved.restart_count == scene.status.restart_count
    return round(plan.wake - scene.now, 3)


def bound_leader(**changes: Any) -> Scene:
    """The leader has a node of pool red, and host 1 finds none there."""
    scene = Scene(**changes).rest().bind(0, "red-0").rest().unschedulable(1)
    return scene


def test_a_first_pod_waits_for_capacity_without_end() -> None:
    scene = Scene().rest().unschedulable(0)
    assert ends(scene) is None
    scene.rest()
    assert scene.condition("Scheduled") == ("False", "CapacityUnavailable", "r-two-0-1-0: 0/4 nodes")
    assert ends(bound_leader()) is None, "strangers are on the pool's hosts"


def test_a_slice_leaves_a_pool_that_lacks_hosts_when_another_does_not() -> None:
    scene = bound_leader().put_node("red-1", "red", spec=CORDONED)
    assert ends(scene) == HOSTS_SECONDS
    scene.put_node("blue-1", "blue", spec=CORDONED)
    assert ends(scene) is None, "every pool lacks hosts"


def test_a_slice_leaves_a_pool_where_an_old_pod_of_its_own_has_a_host() -> None:
    scene = learning(recovery={"in_place": False}).delete(1, grace=5).rest().bind(0, "red-0").rest()
    scene.unschedulable(1).wait(30)
    assert ends(scene) == HOSTS_SECONDS - 30


def test_a_replaced_pod_waits_for_its_host_for_a_short_time() -> None:
    scene = learning().fail(1).rest().unschedulable(1)
    assert ends(scene) == RETURN_SECONDS
    whole = learning().fail_all(0, 1, 2, 3).rest()
    for host in range(4):
        whole.unschedulable(host)
    whole.wait(6)  # the back-off of the first restart
    assert ends(whole) == RETURN_SECONDS - 6


def test_a_leader_created_again_in_a_taken_pool_is_given_another_after_a_short_time() -> None:
    scene = Scene(TWO_SLICES).rest().bind(0, "red-0").bind(2, "blue-0").rest()
    scene.vanish(2)  # before the hosts have met, so that no incarnation is lost
    scene.rest()
    assert pool_of(scene.pod(2)) == "blue"
    scene.unschedulable(2)
    assert ends(scene) == RETURN_SECONDS


def test_slices_that_are_held_are_given_back_in_time_and_others_go_first() -> None:
    scene = Scene(TWO_SLICES).rest().bind(0, "red-0").rest().unschedulable(2)
    waited = ends(scene)
    assert waited is not None and SLICES_SECONDS <= waited <= 2 * SLICES_SECONDS
    scene.now += waited + 0.01
    scene.once()
    for host in (0, 1, 2):
        scene.vanish(host)
    assert scene.look().create == () and scene.plan.wake == scene.now + GIVE_WAY_SECONDS
    assert len(scene.look(after=GIVE_WAY_SECONDS).create) == 2


class Crowd:
    """Units of two-host slices that share node pools, and a scheduler that reads nothing but the pods' own specs.

    Args:
        blind: the operator sees no nodes.
    """

    def __init__(self, units: int, pools: int, slices: int, blind: bool, seed: int) -> None:
        self.now, self.random, self.newest_first = NOW, Random(seed), False
        self.units: list[Scene] = []
        for index in range(units):
            unit = Scene(TWO_HOSTS, name=f"u{index}", slices=slices, sees_nodes=not blind)
            unit.recovery, unit.nodes = RecoverySpec(max_restarts=1000), {}
            self.units.append(unit)
        self.nodes = self.units[0].nodes
        for index in range(pools):
            for host in range(2):
                self.units[0].put_node(f"p{index}-{host}", f"p{index}")

    def pods(self) -> list[tuple[Scene, Object]]:
        return [(unit, pod) for unit in self.units for pod in unit.pods.values()]

    def reconcile(self, unit: Scene, writes: int = 100) -> bool:
        """One pass of an operator that dies after so many writes, and that may not have heard of some nodes."""
        unit.now = self.now
        unit.nodes = {each: node for each, node in self.nodes.items() if self.random.random() < 0.9}
        return unit.turn(writes)

    def act(self, kind: str, number: int) -> None:
        unit, found = self.units[number % len(self.units)], self.pods()
        owner, pod = found[number % len(found)] if found else (unit, {})
        if kind in ("reconcile", "crash"):
            self.reconcile(unit, number % 4 if kind == "crash" else 100)
        elif kind == "kubelets":
            self.kubelets()
        elif kind == "wait":
            self.now += number
        elif pod and kind == "schedule":
            self.schedule(owner, pod)
        elif pod and kind == "delete":
            pod["metadata"]["deletionTimestamp"] = format_time(self.now + 1)
        elif pod and "nodeName" in pod["spec"]:
            pod["status"] = {"phase": "Failed"} | self.random.choice([{"reason": "Evicted"}, FAILED])

    def kubelets(self) -> None:
        """What is terminating is gone."""
        for unit in self.units:
            unit.pods = {
                name: pod for name, pod in unit.pods.items() if "deletionTimestamp" not in pod["metadata"]
            }

    def schedule(self, unit: Scene, pod: Object) -> None:
        """Binds a pod to any node that fits, or says that there is none."""
        if "nodeName" in pod["spec"] or "deletionTimestamp" in pod["metadata"]:
            return
        unit.now = self.now
        if fitting := [node for node in self.nodes if self._fits(pod, node)]:
            unit.bind(pod, self.random.choice(fitting)).start(pod)
        elif "conditions" not in pod["status"]:
            unit.unschedulable(pod)

    def bound(self, pool: str) -> list[Object]:
        there = [pod for _, pod in self.pods() if pod["status"]["phase"] != "Failed"]
        return [pod for pod in there if pod["spec"].get("nodeName", "").startswith(f"{pool}-")]

    def _fits(self, pod: Object, node: str) -> bool:
        pool = self.nodes[node].pool
        there, apart = self.bound(pool), "podAntiAffinity"
        if any(other["spec"]["nodeName"] == node for other in there) or pool_of(pod) not in ("", pool):
            return False
        if any(selects(pod, apart, each) or selects(each, apart, pod) for each in there):
            return False
        if not terms(pod, "podAffinity"):
            return True
        pools = {each.pool for each in self.nodes.values()}
        peers = [each for each in pools for other in self.bound(each) if selects(pod, "podAffinity", other)]
        return pool in peers or (not peers and selects(pod, "podAffinity", pod))

    def check(self) -> None:
        """No pool is held by two slices, and no slice is in two pools."""
        places: dict[tuple[str, ...], set[str]] = {}
        for pool in {node.pool for node in self.nodes.values()}:
            there = [pod["metadata"]["labels"] for pod in self.bound(pool)]
            held = {labels["atoll.dev/holds"] for labels in there if "atoll.dev/holds" in labels}
            assert len(held) <= 1, f"{pool} is held by {held}"
            for labels in there:
                part = tuple(labels[f"atoll.dev/{key}"] for key in ("unit", "placement", "slice"))
                places.setdefault(part, set()).add(pool)
        assert all(len(pools) == 1 for pools in places.values()), places

    def whole(self) -> int:
        """Units all of whose hosts run on their hosts of now."""
        return sum(len(unit.serving()) == unit.hosts for unit in self.units)

    def settle(self, seconds: float, wanted: int) -> None:
        """Nothing fails any more: turns of 10 s until so many units are whole."""
        end = self.now + seconds
        while self.whole() < wanted:
            assert self.now < end, f"{self.whole()} units of {wanted} are whole after {seconds} s"
            for unit in self.random.sample(self.units, len(self.units)):
                for _ in range(5):
                    if not self.reconcile(unit):
                        break
                waiting = list(reversed(self.pods()))
                if not self.newest_first:
                    self.random.shuffle(waiting)
                for owner, pod in waiting:
                    self.schedule(owner, pod)
                self.check()
            self.kubelets()
            self.now += 10


FAILED = {"containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1}}}]}


def selects(one: Object, kind: str, other: Object) -> bool:
    """Whether a required term of this kind in `one` matches `other`; all pods are in one namespace."""
    labels = other["metadata"]["labels"]

    def holds(rule: Object) -> bool:
        key = rule["key"]
        return key in labels if rule["operator"] == "Exists" else labels.get(key) not in rule["values"]

    return any(
        term["labelSelector"].get("matchLabels", {}).items() <= labels.items()
        and all(map(holds, term["labelSelector"].get("matchExpressions", [])))
        for term in terms(one, kind)
    )


ACTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 99)), max_size=60)


@settings(max_examples=200, deadline=None)
@given(
    acts=ACTS,
    units=st.integers(1, 3),
    pools=st.integers(1, 3),
    blind=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_whatever_happens_no_pool_is_shared_and_every_pool_is_used_in_the_end(
    acts: list[tuple[str, int]], units: int, pools: int, blind: bool, seed: int
) -> None:
    world = Crowd(units, pools, 1, blind, seed)
    for kind, number in acts:
        world.act(kind, number)
        world.check()
    world.settle(7200, min(units, pools))


@settings(max_examples=25, deadline=None)
@given(units=st.integers(2, 3), pools=st.integers(2, 5), seed=st.integers(0, 2**32))
def test_units_of_two_slices_do_not_wait_for_each_other_for_ever(units: int, pools: int, seed: int) -> None:
    Crowd(units, pools, 2, False, seed).settle(24 * 3600, min(units, pools // 2))

"""Where the pods of a unit go, and units that contend for node pools; the scheduler obeys the pods' own specs."""

from __future__ import annotations

from typing import Any

import pytest
from memory_cluster import selects, terms
from scene import TWO_SLICES, Scene, learning
from scene_cluster import Object

from atoll_operator.api.group import NODE_POOL
from atoll_operator.plan.unit import placement

CORDONED = {"unschedulable": True}
LEAVING = {"cloud.google.com/active-node-maintenance": "ONGOING"}


def pool_of(pod: Object) -> str:
    return str(pod["spec"]["nodeSelector"].get(NODE_POOL, ""))


def holds(pod: Object) -> bool:
    return "atoll.dev/holds" in pod["metadata"]["labels"]


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
    scene = Scene(topology="2x2", machine_type=None).rest()
    assert "affinity" not in scene.pod(0)["spec"] and not holds(scene.pod(0)), "a single host may go anywhere"


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
    assert (moved.placement, moved.restart_count) == (scene.numbers[0] + 1, scene.status.restart_count)
    assert moved.restarts[-1].reason == "CapacityUnavailable"
    return round(plan.wake - scene.now, 3)


def bound_leader() -> Scene:
    """The leader has a node of pool red, and host 1 finds none there."""
    return Scene().rest().bind(0, "red-0").rest().unschedulable(1)


def test_a_first_pod_waits_for_capacity_without_end() -> None:
    scene = Scene().rest().unschedulable(0)
    assert ends(scene) is None
    scene.rest()
    assert scene.condition("Scheduled") == ("False", "CapacityUnavailable", "r-two-0-1-0: 0/4 nodes")
    assert ends(bound_leader()) is None, "strangers are on the pool's hosts"


def test_a_slice_leaves_a_pool_that_lacks_hosts_when_another_does_not() -> None:
    scene = bound_leader().put_node("red-1", "red", spec=CORDONED)
    assert ends(scene) == placement.HOSTS_SECONDS
    scene.put_node("blue-1", "blue", spec=CORDONED)
    assert ends(scene) is None, "every pool lacks hosts"
    scene = learning(recovery={"in_place": False}).delete(1, grace=5).rest().bind(0, "red-0").rest()
    scene.unschedulable(1).wait(30)
    assert ends(scene) == placement.HOSTS_SECONDS - 30, "an old pod of its own has a host there"


def test_a_replaced_pod_waits_for_its_host_for_a_short_time() -> None:
    scene = learning().fail(1).rest().unschedulable(1)
    assert ends(scene) == placement.RETURN_SECONDS
    whole = learning().fail_all(0, 1, 2, 3).rest()
    for host in range(4):
        whole.unschedulable(host)
    whole.wait(6)  # the back-off of the first restart
    assert ends(whole) == placement.RETURN_SECONDS - 6


def test_a_leader_created_again_in_a_taken_pool_is_given_another_after_a_short_time() -> None:
    scene = Scene(TWO_SLICES).rest().bind(0, "red-0").bind(2, "blue-0").rest()
    scene.vanish(2)  # before the hosts have met, so that no incarnation is lost
    scene.rest()
    assert pool_of(scene.pod(2)) == "blue"
    scene.unschedulable(2)
    assert ends(scene) == placement.RETURN_SECONDS


def test_slices_that_are_held_are_given_back_in_time_and_others_go_first() -> None:
    scene = Scene(TWO_SLICES).rest().bind(0, "red-0").rest().unschedulable(2)
    waited = ends(scene)
    assert waited is not None and placement.SLICES_SECONDS <= waited <= 2 * placement.SLICES_SECONDS
    scene.now += waited + 0.01
    scene.once()
    for host in (0, 1, 2):
        scene.vanish(host)
    assert scene.look().create == () and scene.plan.wake == scene.now + placement.GIVE_WAY_SECONDS
    assert len(scene.look(after=placement.GIVE_WAY_SECONDS).create) == 2

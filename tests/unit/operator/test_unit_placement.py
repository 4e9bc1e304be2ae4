"""Where the pods of a unit go, and when it leaves a place that has no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from memory_cluster import selects, terms
from pod_kinds import learner_unit
from run_scene import NOW

from atoll_operator.api.group import NODE_POOL
from atoll_operator.api.learnerunit import Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import format_time
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods import gang
from atoll_operator.plan.pods.gang import PodPlacement
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import placement
from atoll_operator.plan.unit.unit import UnitObserved

CHIPS = {"blue": 8, "red": 8}
"""Sound chips of two pools, each with a slice's hosts."""
POOR = {**CHIPS, "red": 4}
UNIT = replace(learner_unit(), sound_chips=CHIPS, nodes={"n": NodeView(name="n", pool="red")})
TWO_SLICES = replace(UNIT, spec=UNIT.spec.model_copy(update={"slices": 2}))


def pod(host: int, bound: bool = True, pool: str = "red", made_for: int = 3, **changes: Any) -> PodView:
    """A pod of the third placement, which is bound since `NOW` or unschedulable since then."""
    since = (
        {"node": "n", "scheduled_at": NOW} if bound else {"unschedulable": "0/4", "unschedulable_since": NOW}
    )
    return PodView(
        name=f"p-{host}", placement=3, made_for=made_for, host=host, pool=pool, **(since | changes)
    )


def places(unit: UnitObserved = UNIT, **pods: list[PodView]) -> dict[int, PodPlacement]:
    return placement.place(unit, *(pods.get(name, []) for name in ("kept", "outgoing", "stale")))


def of(**spec: Any) -> UnitObserved:
    return replace(UNIT, spec=UNIT.spec.model_copy(update=spec))


ALONE: dict[str, Any] = {"topology": "2x2", "machine_type": None}
"""A slice of one host."""
HELD = PodPlacement("red", holds=True)
PLACES = {
    "the leader chooses a pool alone": (UNIT, {}, {0: PodPlacement(holds=True)}),
    "the others follow it": (UNIT, {"kept": [pod(0, pool="")]}, {1: PodPlacement("red")}),
    "also where its pool is not known": (
        replace(UNIT, nodes={}), {"kept": [pod(0, pool="")]}, {1: PodPlacement(near=True)},
    ),
    "they wait for it": (UNIT, {"kept": [pod(0, False, "")]}, {}),
    "a pool that the user names": (of(node_selector={NODE_POOL: "red"}), {}, {0: HELD, 1: HELD}),
    "a single host goes anywhere": (of(**ALONE), {}, {0: PodPlacement()}),
    "all at once in a queue": (of(queue_name="team"), {}, dict.fromkeys((0, 1), PodPlacement(holds=True, near=True))),
    "all at once without nodes to see": (
        replace(UNIT, sees_nodes=False), {}, dict.fromkeys((0, 1), PodPlacement(holds=True, near=True)),
    ),
    "rather not where hosts are lacking": (
        replace(UNIT, sound_chips=POOR), {}, {0: PodPlacement(holds=True, avoid=("red",))},
    ),
    "rather not where an old pod runs": (UNIT, {"stale": [pod(1)]}, {0: PodPlacement(holds=True, avoid=("red",))}),
    "a replaced leader in its pool": (UNIT, {"kept": [pod(1)], "outgoing": [pod(0, phase="Failed")]}, {0: HELD}),
    "a whole slice in its pool": (UNIT, {"outgoing": [pod(n, phase="Failed") for n in (0, 1)]}, {0: HELD, 1: HELD}),
    "a pod that ends keeps its host": (UNIT, {"kept": [pod(0)], "outgoing": [pod(1)]}, {}),
}  # fmt: skip


@pytest.mark.parametrize(("unit", "pods", "wanted"), PLACES.values(), ids=PLACES)
def test_where_pods_go(unit: UnitObserved, pods: Any, wanted: dict[int, PodPlacement]) -> None:
    assert places(unit, **pods) == wanted


def body(unit: UnitObserved, place: PodPlacement) -> Any:
    return gang.pods(unit, {0: place})[0]()


def test_a_pod_that_follows_has_no_affinity_and_avoided_pools_are_a_wish() -> None:
    follower = body(UNIT, PodPlacement("red"))
    assert "affinity" not in follower["spec"] and "atoll.dev/holds" not in follower["metadata"]["labels"]
    assert follower["spec"]["nodeSelector"][NODE_POOL] == "red"
    leader = body(UNIT, PodPlacement(holds=True, avoid=("red",)))
    assert "atoll.dev/holds" in leader["metadata"]["labels"] and terms(leader, "podAffinity") == []
    wish = leader["spec"]["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert "red" in str(wish) and NODE_POOL not in leader["spec"]["nodeSelector"]


def test_leaders_of_units_of_one_name_in_two_namespaces_keep_apart_and_pods_of_one_unit_do_not() -> None:
    first, second = (body(learner_unit(name=name, uid=name), PodPlacement(holds=True)) for name in ("a", "b"))
    again = body(learner_unit(number=4, name="a", uid="a"), PodPlacement("red", holds=True))
    assert selects(first, "podAntiAffinity", second) and selects(second, "podAntiAffinity", first)
    assert not selects(again, "podAntiAffinity", first)
    assert terms(first, "podAntiAffinity")[0]["namespaceSelector"] == {}, "of all namespaces"


@pytest.mark.parametrize(
    ("kind", "pool", "avoided"),
    [(ALONE, "p", ["n-0"]), (ALONE, "", ["n-0"]), ({}, "p", None), ({}, "", ["n-0"])],
)
def test_a_suspect_host_is_avoided_also_in_a_pool_that_the_user_names_but_not_that_pool(
    kind: dict[str, Any], pool: str, avoided: Any
) -> None:
    unit = of(**kind, node_selector={NODE_POOL: pool} if pool else {})
    left = Restart(time=format_time(NOW), reason="Suspect", avoid=("n-0",))
    unit = replace(unit, status=unit.status.model_copy(update={"restarts": (left,)}))
    terms = body(unit, PodPlacement())["spec"].get("affinity", {}).get("nodeAffinity", {}).get(gang.REQUIRED)
    found = terms and [rule["values"] for rule in terms["nodeSelectorTerms"][0]["matchExpressions"]]
    assert found == (avoided and [avoided])


@pytest.mark.parametrize(("sees_nodes", "lost", "seconds"), [(True, 4, 30), (True, 120, 120), (False, 4, 4)])
def test_kubernetes_deletes_pods_of_a_lost_node_as_we_do(sees_nodes: bool, lost: int, seconds: int) -> None:
    unit = replace(UNIT, sees_nodes=sees_nodes, recovery=RecoverySpec(node_lost_seconds=lost))
    tolerations = body(unit, PodPlacement())["spec"]["tolerations"]
    found = {item["key"]: item.get("tolerationSeconds") for item in tolerations}
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        assert found[key] == seconds


WAITS = {
    "a first leader waits without end": (UNIT, [pod(0, False, "")], [], None),
    "and a first follower, for strangers": (UNIT, [pod(0), pod(1, False)], [], None),
    "and in a pool that the user named": (of(node_selector={NODE_POOL: "red"}), [pod(0, False)], [], None),
    "also when a follower got its first node": (
        of(node_selector={NODE_POOL: "red"}), [pod(0, False), pod(1)], [], None,
    ),
    "a slice in a pool that lacks hosts": (
        replace(UNIT, sound_chips=POOR), [pod(0), pod(1, False)], [], placement.HOSTS_SECONDS,
    ),
    "but not if every pool does": (
        replace(UNIT, sound_chips={"blue": 4, "red": 4}), [pod(0), pod(1, False)], [], None,
    ),
    "an old pod of its own has a host there": (UNIT, [pod(0), pod(1, False)], [pod(1)], placement.HOSTS_SECONDS),
    "a replaced pod": (UNIT, [pod(0), pod(1, False, made_for=4)], [], placement.RETURN_SECONDS),
    "a replaced slice": (UNIT, [pod(n, False, made_for=4) for n in (0, 1)], [], placement.RETURN_SECONDS),
    "a leader made again in a pool that is taken": (UNIT, [pod(0, False)], [], placement.RETURN_SECONDS),
}  # fmt: skip


@pytest.mark.parametrize(("unit", "kept", "stale", "seconds"), WAITS.values(), ids=WAITS)
def test_how_long_a_unit_waits_for_room(
    unit: UnitObserved, kept: Any, stale: Any, seconds: float | None
) -> None:
    end = placement.overdue(unit, kept, stale)
    assert end == ("", None if seconds is None else NOW + seconds)
    last = placement.overdue(replace(unit, now=NOW + (seconds or 1e6)), kept, stale)
    assert bool(last[0]) is (seconds is not None)


def test_slices_that_are_held_are_given_back_in_time_and_others_go_first() -> None:
    waiting = [pod(0), pod(1), pod(2, False, "")]
    _, end = placement.overdue(TWO_SLICES, waiting, [])
    assert end is not None and placement.SLICES_SECONDS <= end - NOW <= 2 * placement.SLICES_SECONDS
    assert "2 slices have a place" in placement.overdue(replace(TWO_SLICES, now=end), waiting, [])[0]
    moved = Restart(time=format_time(NOW), reason="CapacityUnavailable")
    unit = replace(TWO_SLICES, status=UNIT.status.model_copy(update={"restarts": (moved,)}))
    assert places(unit) == {} and placement.overdue(unit, [], [])[1] == NOW + placement.GIVE_WAY_SECONDS
    assert places(replace(unit, now=NOW + placement.GIVE_WAY_SECONDS)).keys() == {0, 2}
    assert places(replace(unit, now=NOW - 3600)).keys() == {0, 2}, "a clock that was ahead holds nothing back"

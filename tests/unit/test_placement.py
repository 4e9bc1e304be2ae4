"""Where the pods of a gang go: by tables, and in a world of contending units with a scheduler that obeys the pods."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from objects import TWO_HOSTS

from atoll_operator.api.group import NODE_POOL, TPU
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus, Restart
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.clock import format_time, parse_time
from atoll_operator.plan.nodes import NodeView, view_node
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.topology import slice_of
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.unit.placement import (
    GIVE_WAY_SECONDS,
    HOSTS_SECONDS,
    RETURN_SECONDS,
    SLICES_SECONDS,
    Gathering,
    Spot,
    gives_way_until,
    may_return,
    overdue,
    spots,
)
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved

NOW = 1_700_000_000.0
LEADER = Spot(holds=True)
ORDERS = Orders(
    stop="",
    finishing=False,
    recovery=RecoverySpec(max_restarts=1000),
    settings=PodSettings(run="r", image="runtime", pull_policy="IfNotPresent", environment={}),
)


def pod(host: int, node: str = "", gang: int = 2, **changes: Any) -> PodView:
    return PodView(name=f"u-{gang}-{host}", uid=f"{gang}-{host}", gang=gang, host=host, node=node, **changes)


def nodes(**pools: str) -> dict[str, NodeView]:
    return {name: NodeView(name=name, pool=pool) for name, pool in pools.items()}


def gathering(*pods: PodView, spec: LearnerUnitSpec = TWO_HOSTS, **changes: Any) -> Gathering:
    shape = slice_of(spec.accelerator, spec.topology, spec.machine_type)
    return Gathering(
        **({"spec": spec, "shape": shape, "pods": pods, "nodes": nodes(a="p", b="p", c="q")} | changes)
    )


def of(**changes: Any) -> LearnerUnitSpec:
    return TWO_HOSTS.model_copy(update=changes)


APP_ERROR: dict[str, Any] = {
    "phase": "Failed",
    "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 1}}}],
}
FOUR_HOSTS: dict[str, Any] = {
    "spec": of(topology="4x4"),
    "shape": slice_of("tpu-v6e-slice", "4x4", "ct6e-standard-4t"),
}
OLD = (pod(0, "a", 1), pod(1, "b", 1))


@pytest.mark.parametrize(
    ("gang", "expected"),
    [
        pytest.param(gathering(), {0: LEADER}, id="the leader first"),
        pytest.param(
            gathering(sound_chips={"p": 4, "q": 8, "r": 0}),
            {0: Spot(holds=True, avoid=("p", "r"))},
            id="rather not into a pool that lacks hosts",
        ),
        pytest.param(
            gathering(stale=(pod(1, "b", 1), pod(0, "c", 1, phase="Failed")), sound_chips={"p": 8, "q": 4}),
            {0: Spot(holds=True, avoid=("p", "q"))},
            id="rather not where an old pod of its own still runs",
        ),
        pytest.param(gathering(pod(0)), {}, id="nobody before it is bound"),
        pytest.param(gathering(pod(0, "a")), {1: Spot("p")}, id="then the others into its pool"),
        pytest.param(gathering(pod(0, "new")), {1: Spot(near=True)}, id="of a node not yet seen"),
        pytest.param(
            gathering(pod(0, "x"), nodes=nodes(x="")), {1: Spot(near=True)}, id="of a node of no pool"
        ),
        pytest.param(
            gathering(at_once=True),
            dict.fromkeys((0, 1), Spot(holds=True, near=True)),
            id="all at once without sight of nodes",
        ),
        pytest.param(
            gathering(spec=of(node_selector={NODE_POOL: "mine"})),
            dict.fromkeys((0, 1), Spot("mine", holds=True)),
            id="all at once into the pool that the user names",
        ),
        pytest.param(
            gathering(former=OLD),
            dict.fromkeys((0, 1), Spot("p", holds=True)),
            id="all at once back to the old pool",
        ),
        pytest.param(
            gathering(pod(1, pool="p"), former=OLD),
            {0: Spot("p", holds=True)},
            id="the rest of a gang that returns, after a crash",
        ),
        pytest.param(
            gathering(pod(1, "b"), nodes={}),
            {0: Spot(holds=True, near=True)},
            id="a leader that was deleted, to its peers",
        ),
        pytest.param(
            gathering(former=(*OLD, pod(0, "c", 0))),
            dict.fromkeys((0, 1), Spot("p", holds=True)),
            id="the last pool of several",
        ),
        pytest.param(gathering(former=(OLD[0], pod(1, "c", 1))), {0: LEADER}, id="not to two pools"),
        pytest.param(gathering(former=(OLD[0], pod(1, "gone", 1))), {0: LEADER}, id="not to a node unknown"),
        pytest.param(gathering(former=(pod(0, "", 1),)), {0: LEADER}, id="not where it never was"),
        pytest.param(
            gathering(spec=of(topology="2x2"), shape=slice_of("tpu-v6e-slice", "2x2")),
            {0: Spot()},
            id="a single host anywhere",
        ),
        pytest.param(gathering(spec=of(slices=2)), {0: LEADER, 2: LEADER}, id="a leader for each slice"),
        pytest.param(
            gathering(pod(0), pod(2, "c"), spec=of(slices=2)),
            {3: Spot("q")},
            id="each slice after its own leader",
        ),
        pytest.param(
            gathering(spec=of(slices=2), former=(*OLD, pod(2, "c", 1), pod(3, "lost", 1))),
            {0: Spot("p", holds=True), 1: Spot("p", holds=True), 2: LEADER},
            id="one slice back to its pool, one elsewhere",
        ),
        pytest.param(gathering(not_before=NOW + 1), {}, id="nobody while it gives way"),
    ],
)
def test_pods_are_made_where_they_may_be(gang: Gathering, expected: dict[int, Spot]) -> None:
    assert spots(gang, NOW) == expected


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param({"gone": True}, id="gone"),
        pytest.param({"silent_since": NOW}, id="silent"),
        pytest.param({"out_of_service": True}, id="out of service"),
        pytest.param({"cordoned": True}, id="cordoned"),
        pytest.param({"maintenance": "soon"}, id="maintenance"),
    ],
)
def test_no_gang_returns_to_a_node_that_does_not_stay(trouble: dict[str, Any]) -> None:
    seen = nodes(a="p", b="p")
    assert spots(gathering(former=OLD, nodes=seen), NOW)[0].pool == "p"
    seen["b"] = replace(seen["b"], **trouble)
    assert spots(gathering(former=OLD, nodes=seen), NOW) == {0: LEADER}


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        pytest.param((), False, id="nothing failed yet"),
        pytest.param(("AppError",), True, id="a process failed"),
        pytest.param(("NodeLost", "Hang"), True, id="of late"),
        *(
            pytest.param((reason,), False, id=reason)
            for reason in ("NodeLost", "HostMaintenance", "Preempted", "Evicted", "AdmissionRejected")
        ),
        pytest.param(("Hang", "CapacityUnavailable"), False, id="the pool was taken"),
        pytest.param(("Hang", "Hang", "Hang"), False, id="for the third time"),
    ],
)
def test_a_gang_returns_when_a_process_failed_and_not_the_place(
    reasons: tuple[str, ...], expected: bool
) -> None:
    restarts = tuple(Restart(time=format_time(NOW), reason=reason) for reason in reasons)
    healing = LearnerUnitStatus(restarts=restarts, heal_start_time=format_time(NOW))
    assert may_return(healing) == expected
    assert not may_return(healing.model_copy(update={"heal_start_time": None}))


def waits(host: int, since: float, pool: str = "", node: str = "") -> PodView:
    return pod(host, node, pool=pool, unschedulable="0/2 nodes", unschedulable_since=since)


@pytest.mark.parametrize(
    ("gang", "end"),
    [
        pytest.param(gathering(waits(0, NOW)), None, id="capacity in general is waited for"),
        pytest.param(
            gathering(waits(0, NOW, "p"), waits(1, NOW + 1, "p")), NOW + RETURN_SECONDS, id="the old pool"
        ),
        pytest.param(
            gathering(pod(0, "a", pool="p"), waits(1, NOW, "p")),
            NOW + RETURN_SECONDS,
            id="a part of the old pool",
        ),
        pytest.param(gathering(pod(0, "a"), waits(1, NOW, "p")), None, id="the leader's own pool"),
        pytest.param(
            gathering(pod(0, "a"), waits(1, NOW, "p"), sound_chips={"p": 4, "q": 8}),
            NOW + HOSTS_SECONDS,
            id="a pool that lacks hosts while another does not",
        ),
        pytest.param(
            gathering(pod(0, "a"), waits(1, NOW, "p"), sound_chips={"p": 4, "q": 4}),
            None,
            id="every pool lacks hosts",
        ),
        pytest.param(
            gathering(pod(0, "a"), waits(1, NOW, "p"), sound_chips={"p": 8, "q": 8}),
            None,
            id="strangers are on its hosts",
        ),
        pytest.param(
            gathering(pod(0, "a"), waits(1, NOW, "p"), stale=(pod(1, "b", 1),), sound_chips={"p": 8, "q": 8}),
            NOW + HOSTS_SECONDS,
            id="an old pod of its own is on one of its hosts",
        ),
        pytest.param(
            gathering(pod(0, "a"), waits(1, NOW, "p"), stale=(pod(1, "b", 1),), sound_chips={"p": 8}),
            None,
            id="an old pod, and there is no other pool",
        ),
        pytest.param(
            gathering(waits(0, NOW, "p"), spec=of(node_selector={NODE_POOL: "p"})), None, id="the user's pool"
        ),
        pytest.param(gathering(waits(0, NOW), waits(2, NOW), spec=of(slices=2)), None, id="no slice is held"),
        pytest.param(
            gathering(pod(0, "a"), pod(1, "b"), waits(2, NOW), spec=of(slices=2), spread=0.5),
            NOW + 1.5 * SLICES_SECONDS,
            id="one slice of two is held",
        ),
        pytest.param(
            gathering(
                pod(0, "a", scheduled_at=NOW - 5),
                pod(1, "b", scheduled_at=NOW),
                waits(2, NOW - 9000),
                spec=of(slices=2),
            ),
            NOW + SLICES_SECONDS,
            id="one slice of two came after a long wait",
        ),
    ],
)
def test_a_place_is_given_up_in_time(gang: Gathering, end: float | None) -> None:
    assert overdue(gang, NOW) == ("", end)
    later = NOW + 1e6 if end is None else end
    assert bool(overdue(gang, later)[0]) == (end is not None)
    if end is not None:
        assert "0/2 nodes" in overdue(gang, later)[0]


def test_a_unit_that_gave_slices_back_lets_others_go_first() -> None:
    gave = LearnerUnitStatus(restarts=(Restart(time=format_time(NOW), reason="CapacityUnavailable"),))
    assert gives_way_until(gave, 2) == NOW + GIVE_WAY_SECONDS
    assert gives_way_until(gave, 1) == 0
    assert gives_way_until(LearnerUnitStatus(), 2) == 0
    assert overdue(gathering(not_before=NOW + 3, spec=of(slices=2)), NOW) == ("", NOW + 3)


@dataclass
class Unit:
    spec: LearnerUnitSpec
    status: LearnerUnitStatus = field(default_factory=LearnerUnitStatus)

    @property
    def hosts(self) -> int:
        return 2 * self.spec.slices


class World:
    """Units of two-host slices, fewer node pools, and a scheduler that reads nothing but the pods' own specs.

    Args:
        large: each pool is one node with room for two hosts, not two nodes.
        blind: the operator sees no nodes.
        strangers: hosts in as many pools have pods that the operator knows nothing of.
    """

    seen = 0.9
    """Chance that the operator has heard of a node when it looks."""
    newest_first = False
    """The scheduler prefers new pods, as it does to those that wait for their next try."""

    def __init__(
        self,
        units: int,
        pools: int,
        slices: int,
        *,
        large: bool,
        blind: bool,
        random: Random,
        strangers: int = 0,
    ) -> None:
        self.now = NOW
        self.random = random
        self.blind = blind
        self.units = {f"u{index}": Unit(of(slices=slices)) for index in range(units)}
        self.room = 2 if large else 1
        self.nodes = {
            f"p{index}-{number}": {
                "metadata": {
                    "name": f"p{index}-{number}",
                    "labels": {
                        NODE_POOL: f"p{index}",
                        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
                        "cloud.google.com/gke-tpu-topology": "2x4",
                        "node.kubernetes.io/instance-type": "ct6e-standard-4t",
                    },
                },
                "status": {"allocatable": {TPU: str(4 * self.room)}},
            }
            for index in range(pools)
            for number in range(2 // self.room)
        }
        self.strangers = {f"p{index}-{2 // self.room - 1}" for index in range(strangers)}
        self.pods: dict[str, dict[str, Any]] = {}

    def reconcile(self, name: str, writes: int = 100) -> bool:
        """One pass of an operator that dies after so many writes; whether there was anything to do."""
        unit = self.units[name]
        pods = tuple(
            view(body) for body in self.pods.values() if body["metadata"]["labels"]["atoll.dev/unit"] == name
        )
        known = {
            key: view_node(body, None, self.now)
            for key, body in self.nodes.items()
            if not self.blind and self.random.random() < self.seen
        }
        observed = UnitObserved(
            name=name, namespace="ns", uid=f"{name}-uid", generation=1, spec=unit.spec, status=unit.status,
            pods=pods, orders=ORDERS, nodes=known, sees_nodes=not self.blind,
        )  # fmt: skip
        plan = plan_unit(observed, self.now)
        if plan.advance:
            unit.status = plan.status if writes else unit.status
            return True
        for removal in plan.remove[:writes]:
            self.delete(removal.name)
        for body in plan.create[: max(writes - len(plan.remove), 0)]:
            assert body["metadata"]["name"] not in self.pods
            self._check_new(body["metadata"]["labels"])
            self.pods[body["metadata"]["name"]] = body | {"status": {"phase": "Pending"}}
        done = len(plan.remove) + len(plan.create)
        if writes >= done:
            unit.status = plan.status
        return done > 0

    def _check_new(self, labels: dict[str, str]) -> None:
        """A pod that does not hold its pool comes after a leader that does."""
        leader = f"{labels['atoll.dev/unit']}-{labels['atoll.dev/gang']}-{2 * int(labels['atoll.dev/slice'])}"
        if "atoll.dev/holds" not in labels:
            assert "nodeName" in self.pods[leader]["spec"]
            assert "atoll.dev/holds" in self.pods[leader]["metadata"]["labels"]

    def _room(self, node: str) -> int:
        """Hosts that still have a place there; a stranger has that of one."""
        there = [
            body
            for body in self.pods.values()
            if body["spec"].get("nodeName") == node and body["status"]["phase"] != "Failed"
        ]
        return self.room - len(there) - (node in self.strangers)

    def _running(self) -> dict[str, Any]:
        started = {"startedAt": format_time(self.now)}
        return {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "state": {"running": started}}],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": started["startedAt"]},
            ],
        }

    def delete(self, name: str) -> None:
        body = self.pods[name]
        if "nodeName" in body["spec"] and body["status"]["phase"] != "Failed":
            body["metadata"]["deletionTimestamp"] = format_time(self.now + 1)
        else:
            del self.pods[name]

    def kubelets(self) -> None:
        """What is terminating is gone."""
        for name in [name for name, body in self.pods.items() if "deletionTimestamp" in body["metadata"]]:
            del self.pods[name]

    def fail(self, name: str) -> None:
        """A pod on a node ends: the scheduler forgets it at once."""
        if "nodeName" in self.pods[name]["spec"]:
            evicted = self.random.random() < 0.3
            self.pods[name]["status"] = {"phase": "Failed", "reason": "Evicted"} if evicted else APP_ERROR

    def schedule(self, name: str) -> None:
        """Binds a pod to any node that fits, or says that there is none."""
        body = self.pods.get(name)
        if body is None or "nodeName" in body["spec"]:
            return
        fitting = [node for node in self.nodes if self._fits(body, node)]
        if fitting:
            body["spec"]["nodeName"] = self.random.choice(fitting)
            body["status"] = self._running()
        elif "conditions" not in body["status"]:
            body["status"]["conditions"] = [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node fits",
                 "lastTransitionTime": format_time(self.now)}
            ]  # fmt: skip

    def bound(self, pool: str) -> list[dict[str, Any]]:
        return [
            body
            for body in self.pods.values()
            if "nodeName" in body["spec"]
            and body["status"]["phase"] != "Failed"
            and self.nodes[body["spec"]["nodeName"]]["metadata"]["labels"][NODE_POOL] == pool
        ]

    @property
    def pools(self) -> set[str]:
        return {node["metadata"]["labels"][NODE_POOL] for node in self.nodes.values()}

    def _fits(self, body: dict[str, Any], node: str) -> bool:
        labels = self.nodes[node]["metadata"]["labels"]
        there = self.bound(labels[NODE_POOL])
        if self._room(node) <= 0:
            return False
        if any(labels.get(key) != value for key, value in body["spec"]["nodeSelector"].items()):
            return False
        away = [other for other in there if _selects(body, "podAntiAffinity", other)]
        pushed = [other for other in there if _selects(other, "podAntiAffinity", body)]
        if away or pushed:
            return False
        if "podAffinity" not in body["spec"].get("affinity", {}):
            return True
        peers = [
            pool for pool in self.pools for other in self.bound(pool) if _selects(body, "podAffinity", other)
        ]
        return labels[NODE_POOL] in peers or (not peers and _selects(body, "podAffinity", body))

    def check(self) -> None:
        """No pool is held by two slices; no slice's gang is in two pools."""
        for pool in self.pools:
            held = {body["metadata"]["labels"].get("atoll.dev/holds") for body in self.bound(pool)} - {None}
            assert len(held) <= 1, f"{pool} is held by {held}"
        places: dict[tuple[str, ...], set[str]] = {}
        for pool in self.pools:
            for body in self.bound(pool):
                labels = body["metadata"]["labels"]
                gang = tuple(labels[f"atoll.dev/{key}"] for key in ("unit", "gang", "slice"))
                places.setdefault(gang, set()).add(pool)
        assert all(len(pools) == 1 for pools in places.values()), places

    def whole(self) -> int:
        """Units all of whose hosts run in the gang of now."""
        found = 0
        for name, unit in self.units.items():
            running = [
                body
                for body in self.pods.values()
                if body["metadata"]["labels"]["atoll.dev/unit"] == name
                and body["metadata"]["labels"]["atoll.dev/gang"] == str(unit.status.gang)
                and body["status"]["phase"] == "Running"
                and "deletionTimestamp" not in body["metadata"]
            ]
            found += len(running) == unit.hosts
        return found

    def settle(self, seconds: float, wanted: int) -> None:
        """Nothing fails any more: turns of 10 s until so many units are whole."""
        end = self.now + seconds
        while self.whole() < wanted:
            assert self.now < end, f"{self.whole()} units of {wanted} are whole after {seconds} s"
            for name in self.random.sample(sorted(self.units), len(self.units)):
                for _ in range(5):
                    if not self.reconcile(name):
                        break
                waiting = list(reversed(self.pods))
                if not self.newest_first:
                    self.random.shuffle(waiting)
                for each in waiting:
                    self.schedule(each)
                self.check()
            self.kubelets()
            self.now += 10


def _selects(one: dict[str, Any], kind: str, other: dict[str, Any]) -> bool:
    """Whether a required term of this kind in `one` matches `other`; all pods are in one namespace."""
    terms = (
        one["spec"]
        .get("affinity", {})
        .get(kind, {})
        .get("requiredDuringSchedulingIgnoredDuringExecution", [])
    )
    return any(_matches(term["labelSelector"], other["metadata"]["labels"]) for term in terms)


def _matches(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    holds = {
        "Exists": lambda rule: rule["key"] in labels,
        "NotIn": lambda rule: labels.get(rule["key"]) not in rule["values"],
    }
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        holds[rule["operator"]](rule) for rule in selector.get("matchExpressions", [])
    )


def leader(uid: str, gang: int) -> dict[str, Any]:
    """The first pod of a unit called u0."""
    status = LearnerUnitStatus(incarnation=gang, gang=gang)
    unit = UnitObserved(
        name="u0", namespace="ns", uid=uid, generation=1, spec=TWO_HOSTS, status=status, pods=(), orders=ORDERS,
        sees_nodes=True,
    )  # fmt: skip
    (only,) = plan_unit(unit, NOW).create
    return only


def test_leaders_of_units_of_one_name_in_two_namespaces_keep_apart_and_gangs_of_one_unit_do_not() -> None:
    one, other, next_gang = leader("a", 1), leader("b", 1), leader("a", 2)
    assert _selects(one, "podAntiAffinity", other)
    assert _selects(other, "podAntiAffinity", one)
    assert not _selects(next_gang, "podAntiAffinity", one)
    (term,) = one["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["namespaceSelector"] == {}, "of all namespaces"


def test_a_node_is_seen_with_its_pool_and_whether_it_is_cordoned() -> None:
    node = {"metadata": {"name": "n", "labels": {NODE_POOL: "p"}}, "spec": {"unschedulable": True}}
    seen = view_node(node, None, NOW)
    assert (seen.pool, seen.stays) == ("p", False)
    assert view_node({**node, "spec": {}}, seen, NOW).stays


ACTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["reconcile", "reconcile", "crash", "schedule", "schedule", "fail", "delete", "kubelets", "wait"]
        ),
        st.integers(0, 99),
    ),
    max_size=60,
)


@settings(max_examples=500)
@given(
    acts=ACTS, units=st.integers(1, 3), pools=st.integers(1, 3), strangers=st.integers(0, 2), large=st.booleans(),
    blind=st.booleans(), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_whatever_happens_no_pool_is_shared_and_every_pool_is_used_in_the_end(
    acts: list[tuple[str, int]],
    units: int,
    pools: int,
    strangers: int,
    large: bool,
    blind: bool,
    seed: int,
) -> None:
    world = World(
        units, pools, 1, large=large, blind=blind, random=Random(seed), strangers=min(strangers, pools)
    )
    for act, number in acts:
        unit = f"u{number % units}"
        names = sorted(world.pods)
        pod = names[number % len(names)] if names else ""
        if act in ("reconcile", "crash"):
            world.reconcile(unit, number % 4 if act == "crash" else 100)
        elif act == "kubelets":
            world.kubelets()
        elif act == "wait":
            world.now += number
        elif pod:
            getattr(world, act)(pod)
        world.check()
    world.strangers.clear()
    world.settle(3600, min(units, pools))


@settings(max_examples=25)
@given(
    units=st.integers(2, 3),
    pools=st.integers(2, 5),
    seed=st.integers(0, 2**32),
)
def test_units_of_two_slices_do_not_wait_for_each_other_for_ever(units: int, pools: int, seed: int) -> None:
    world = World(units, pools, 2, large=False, blind=False, random=Random(seed))
    world.settle(24 * 3600, min(units, pools // 2))


def test_two_units_that_hold_what_the_other_wants_are_told_apart_in_time() -> None:
    world = World(2, 2, 2, large=False, blind=False, random=Random(0))
    world.newest_first = True
    for name in world.units:
        world.reconcile(name)
        world.reconcile(name)
    for name in ("u0-1-0", "u1-1-0", "u0-1-2", "u1-1-2"):
        world.schedule(name)
    assert [world.pods[name]["spec"].get("nodeName") for name in ("u0-1-2", "u1-1-2")] == [None, None]
    world.settle(3 * SLICES_SECONDS, 1)
    assert parse_time(format_time(world.now)) > NOW + SLICES_SECONDS

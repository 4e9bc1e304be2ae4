"""Followers of a bound leader, made by a pass of the operator: for nodes that nobody else is on, all or none.

And gangs that are made as a whole, while the scheduler has little to do.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from answering import answering
from objects import RUN, TWO_HOSTS

from atoll_operator.api.group import ACCELERATOR, ANNOTATION_INCARNATION, NODE_POOL, TOPOLOGY, TPU, owner
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.kube.client import Cluster
from atoll_operator.kube.credentials import Credentials
from atoll_operator.kube.errors import Retry
from atoll_operator.kube.keys import Key
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Announcer
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.conditions import document
from atoll_operator.plan.unit import unitgang
from atoll_operator.polling.syncer import Feeds
from atoll_operator.reconcilers import neighbours
from atoll_operator.reconcilers.neighbours import Neighbours
from atoll_operator.reconcilers.store import Store
from atoll_operator.reconcilers.unit import UnitReconciler
from atoll_operator.settings import Settings

HOSTS = 4
UNIT = Key("LearnerUnit", "ns", "r-two-0")
SETTINGS = Settings(runtime_image="i")
SPEC = TWO_HOSTS.model_copy(update={"topology": "4x4"})
SEATED = {f"r-two-0-1-{host}": f"n{host}" for host in range(1, HOSTS)}
UNSEATED = dict.fromkeys(SEATED, "")


def somebody(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "elsewhere", "uid": name, **metadata}}


def controlled(kind: str) -> dict[str, Any]:
    return somebody("p", ownerReferences=[{"kind": kind, "name": "o", "uid": "o", "controller": True}])


class Server:
    """Takes what is made, and tells of others' pods by node."""

    def __init__(self, others: dict[str, list[dict[str, Any]]] | None = None) -> None:
        self.others = others or {}
        self.asked: list[str] = []
        self.made: dict[str, str] = {}
        """Pods and their nodes."""
        self.bodies: list[dict[str, Any]] = []
        self.may_ask = True
        self.takes_nodes = True
        self.answers = asyncio.Event()
        """To who makes a pod."""
        self.answers.set()
        self.busy = asyncio.Event()
        """With as many pods as a gang has."""
        self._under_way = 0
        self.takes = 100
        """Pods in all."""

    async def handle(self, request: web.Request) -> web.Response:
        if request.method == "GET":
            return self._list(request)
        sent = await request.json()
        if sent["kind"] == "Pod":
            self._under_way += 1
            if self._under_way == HOSTS:
                self.busy.set()
            await self.answers.wait()
            node = sent["spec"].get("nodeName", "")
            if len(self.made) >= self.takes or (node and not self.takes_nodes):
                return web.json_response({"reason": "Forbidden", "message": "no"}, status=403)
            self.made[sent["metadata"]["name"]] = node
            self.bodies.append(sent)
        if sent["kind"] == "LearnerUnit":
            sent["spec"] = {"run": "r"}
        sent["metadata"] |= {"uid": sent["metadata"]["name"], "resourceVersion": "7"}
        return web.json_response(sent)

    def _list(self, request: web.Request) -> web.Response:
        assert request.path == "/api/v1/pods"
        assert "PartialObjectMetadataList" in request.headers["Accept"]
        wanted = dict(part.split("=", 1) for part in request.query["fieldSelector"].split(","))
        assert request.query["labelSelector"] == "atoll.dev/unit!=r-two-0"
        self.asked.append(wanted["spec.nodeName"])
        if not self.may_ask:
            return web.json_response({"reason": "Forbidden", "message": "may not"}, status=403)
        return web.json_response({"items": self.others.get(wanted["spec.nodeName"])})


@asynccontextmanager
async def talking(server: Server) -> AsyncIterator[Cluster]:
    async with (
        answering(server.handle) as address,
        Cluster(Credentials(address, ssl.create_default_context()), Metrics()) as cluster,
    ):
        yield cluster


METADATA = {"namespace": "ns", "resourceVersion": "1", "generation": 1}


def add_unit(store: Store, name: str, uid: str, spec: LearnerUnitSpec) -> None:
    """One whose first gang is to be made."""
    unit = METADATA | {"name": name, "uid": uid, "ownerReferences": [owner("TrainingRun", "r", "run")]}
    status = LearnerUnitStatus(phase="Scheduling", incarnation=1, gang=1, observed_generation=1)
    said = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    body = {"apiVersion": RUN["apiVersion"], "metadata": unit, "spec": said, "status": document(status)}
    store.put("LearnerUnit", body)


def empty() -> Store:
    """A run, and a pool with a node for each host of a unit."""
    store = Store()
    store.put("TrainingRun", RUN | {"metadata": METADATA | {"name": "r", "uid": "run"}})
    for host in range(HOSTS):
        labels = {NODE_POOL: "p", ACCELERATOR: SPEC.accelerator, TOPOLOGY: SPEC.topology}
        node = {"metadata": {"name": f"n{host}", "labels": labels}, "status": {"allocatable": {TPU: "4"}}}
        store.put_node(node, 0.0)
    return store


def filled() -> Store:
    """A unit whose leader is bound in the pool."""
    store = empty()
    add_unit(store, UNIT.name, "unit", SPEC)
    labels = {"atoll.dev/unit": UNIT.name, "atoll.dev/gang": "1", "atoll.dev/host": "0"}
    leader = METADATA | {
        "name": "r-two-0-1-0",
        "uid": "leader",
        "labels": labels | {"atoll.dev/component": "learner"},
    }
    leader |= {
        "ownerReferences": [owner("LearnerUnit", UNIT.name, "unit")],
        "annotations": {ANNOTATION_INCARNATION: "1"},
    }
    chips = [{"name": "main", "resources": {"limits": {TPU: "4"}}}]
    store.put("Pod", {"metadata": leader, "spec": {"nodeName": "n0", "containers": chips}})
    return store


async def reconciled(server: Server, settings: Settings = SETTINGS) -> dict[str, str]:
    """The pods that a pass makes, with their nodes."""
    async with talking(server) as cluster:
        metrics = Metrics()
        feeds, announcer = Feeds(settings, metrics, lambda run, units: None), Announcer(cluster)
        queue: WorkQueue[Key] = WorkQueue(lambda key: reconcile(key))
        reconcile = UnitReconciler(settings, cluster, filled(), queue, feeds, metrics, announcer)
        await reconcile(UNIT)
        queue.forget(UNIT)
    return server.made


async def test_followers_are_made_for_the_nodes_of_their_pool() -> None:
    assert await reconciled(Server()) == SEATED


@pytest.mark.parametrize("kind", ["DaemonSet", "Node"])
async def test_pods_that_every_node_has_are_in_nobodys_way(kind: str) -> None:
    assert await reconciled(Server({"n2": [controlled(kind)]})) == SEATED


@pytest.mark.parametrize("other", [somebody("bare"), controlled("ReplicaSet")], ids=["bare", "of a Job"])
async def test_where_one_node_has_a_pod_of_others_all_is_left_to_the_scheduler(other: dict[str, Any]) -> None:
    assert await reconciled(Server({"n2": [controlled("DaemonSet"), other]})) == UNSEATED


async def test_who_may_not_ask_leaves_all_to_the_scheduler() -> None:
    server = Server()
    server.may_ask = False
    assert await reconciled(server) == UNSEATED


async def test_where_direct_placement_is_off_all_is_left_to_the_scheduler_and_nobody_asks() -> None:
    server = Server()
    assert await reconciled(server, replace(SETTINGS, direct_placement=False)) == UNSEATED
    assert server.asked == []


async def test_where_a_policy_refuses_nodes_all_is_left_to_the_scheduler() -> None:
    server = Server()
    server.takes_nodes = False
    assert await reconciled(server) == UNSEATED


async def test_a_quota_that_ends_within_a_gang_leaves_no_part_of_it_to_the_scheduler() -> None:
    server = Server()
    server.takes = 2
    with pytest.raises(Retry, match="no"):
        await reconciled(server)
    assert len(server.made) == 2
    assert server.made.items() <= SEATED.items()


async def test_pods_that_wait_for_a_connection_are_a_crowd_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three units that their user has pinned to a pool; the second one's turn comes while the first is being made."""
    monkeypatch.setattr(unitgang, "CROWD", HOSTS)
    server, store = Server(), empty()
    server.answers.clear()
    pinned = SPEC.model_copy(update={"node_selector": {NODE_POOL: "p"}})
    keys = [Key("LearnerUnit", "ns", f"r-two-{number}") for number in range(3)]
    for key in keys:
        add_unit(store, key.name, f"uid-{key.name}", pinned)
    async with talking(server) as cluster:
        metrics = Metrics()
        feeds, announcer = Feeds(SETTINGS, metrics, lambda run, units: None), Announcer(cluster)
        queue: WorkQueue[Key] = WorkQueue(lambda key: reconcile(key))
        reconcile = UnitReconciler(SETTINGS, cluster, store, queue, feeds, metrics, announcer)
        first = asyncio.create_task(reconcile(keys[0]))
        await asyncio.wait_for(server.busy.wait(), 10)
        second = asyncio.create_task(reconcile(keys[1]))
        server.answers.set()
        await asyncio.gather(first, second)
        assert sorted(server.made) == [*(f"r-two-0-1-{host}" for host in range(HOSTS)), "r-two-1-1-0"]
        for body in server.bodies:
            store.drop("Pod", body)
        server.made.clear()
        await reconcile(keys[2])
        assert len(server.made) == HOSTS, "the crowd is gone"
        for key in keys:
            queue.forget(key)


async def test_few_nodes_are_asked_about_at_a_time_and_none_after_the_first_that_is_taken() -> None:
    server = Server({"n00": [somebody("bare")]})
    nodes = [f"n{number:02}" for number in range(100)]
    async with talking(server) as cluster:
        assert await Neighbours(cluster).on_any(nodes, UNIT.name)
        assert len(server.asked) == neighbours.AT_ONCE
        server.others.clear()
        server.asked.clear()
        assert not await Neighbours(cluster).on_any(nodes, UNIT.name)
        assert sorted(server.asked) == nodes


async def test_rights_that_were_missing_are_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server()
    server.may_ask = False
    async with talking(server) as cluster:
        one = Neighbours(cluster)
        assert await one.on_any(["n1"], UNIT.name)
        server.may_ask = True
        assert await one.on_any(["n1"], UNIT.name)
        assert server.asked == ["n1"], "not again at once"
        monkeypatch.setattr(neighbours, "REFUSED_SECONDS", 0.0)
        server.may_ask = False
        later = Neighbours(cluster)
        assert await later.on_any(["n1"], UNIT.name)
        server.may_ask = True
        assert not await later.on_any(["n1"], UNIT.name)

"""Passes over a unit during which its status or its pods change."""

from __future__ import annotations

import asyncio
import copy
import ssl
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from answering import answering
from objects import RUN, TWO_HOSTS

from atoll_operator.api.group import LABEL_COMPONENT, LABEL_HOST, LABEL_PLACEMENT, LABEL_UNIT, LEARNER, owner
from atoll_operator.api.learnerunit import Failure, LearnerUnitStatus
from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.login import Credentials
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Recorder
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.conditions import document
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.polling.evaluator import EvaluatorPoller
from atoll_operator.polling.syncer import SyncerPoller
from atoll_operator.reconcilers.context import ControllerContext
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.unit import UnitReconciler
from atoll_operator.reconcilers.wakeups import status_writer
from atoll_operator.settings import Settings
from atoll_runtime.contract import BeginningReport, SyncerStatus, UnitReport

BEGAN = time.time()
UNIT = Key("LearnerUnit", "ns", "r-two-0")
HEALING = LearnerUnitStatus(
    phase="Healing",
    incarnation=2,
    placement=2,
    observed_generation=1,
    heal_start_time=format_time(BEGAN - 30),
    last_failure=Failure(reason="NodeLost", time=format_time(BEGAN - 30)),
)


class Server:
    """Has the unit, and takes a status only over the version that it has."""

    def __init__(self, unit: dict[str, Any]) -> None:
        self.unit = unit

    def touch(self) -> None:
        """Somebody changes the unit."""
        self.unit["metadata"]["resourceVersion"] = str(int(self.unit["metadata"]["resourceVersion"]) + 1)

    async def handle(self, request: web.Request) -> web.Response:
        if request.path.endswith("/status"):
            sent = await request.json()
            if sent["metadata"]["resourceVersion"] != self.unit["metadata"]["resourceVersion"]:
                return web.json_response({"reason": "Conflict", "message": "it changed"}, status=409)
            self.unit["status"] = sent["status"]
            self.touch()
            return web.json_response(self.unit)
        if request.method == "GET":
            return web.json_response(self.unit)
        if request.method == "DELETE":
            return web.json_response({"kind": "Status", "status": "Success"})
        sent = await request.json()
        sent["metadata"] |= {"uid": "other", "resourceVersion": "1"}
        return web.json_response(sent)


class Told(SyncerPoller):
    """The syncer says that the unit has been merged again."""

    def state(self, run: Key, uid: str) -> SyncerState:
        begun = BeginningReport(joined=BEGAN - 20, stepped=BEGAN - 10, compiling=5.0)
        report = UnitReport(
            incarnation=2, hosts=2, state="Learning", first_merge_time=BEGAN, seeded_step=8, beginning=begun
        )
        status = SyncerStatus(run_uid=uid, phase="Running", units={UNIT.name: report})
        return SyncerState(status=status, answering_since=BEGAN)


def context(
    settings: Settings, cluster: Cluster, inventory: Inventory, queue: WorkQueue[Key], metrics: Metrics
) -> ControllerContext:
    syncers = Told(settings, metrics, lambda run, units: None)
    evaluators = EvaluatorPoller(settings, metrics, queue.add)
    return ControllerContext(
        settings,
        cluster,
        inventory,
        queue,
        syncers,
        evaluators,
        metrics,
        Recorder(cluster, "o"),
        Applier(cluster, inventory.cache, LABELS, complete=("Service",)),
        status_writer(cluster, inventory, queue),
    )


def pod(host: int) -> dict[str, Any]:
    name = f"{UNIT.name}-2-{host}"
    labels = {LABEL_COMPONENT: LEARNER, LABEL_UNIT: UNIT.name, LABEL_PLACEMENT: "2", LABEL_HOST: str(host)}
    began = format_time(BEGAN - 25)
    return {
        "metadata": {
            "name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "labels": labels,
            "annotations": {"atoll.dev/incarnation": "2"},
            "ownerReferences": [owner("LearnerUnit", UNIT.name, "unit")],
        },
        "spec": {"nodeName": f"node-{host}"},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": began}}}],
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": began},
            ],
        },
    }  # fmt: skip


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, str]]:
    metadata = {"namespace": "ns", "uid": "unit", "resourceVersion": "1", "generation": 1}
    one = Server(
        {
            "apiVersion": RUN["apiVersion"],
            "kind": "LearnerUnit",
            "metadata": metadata | {"name": UNIT.name, "ownerReferences": [owner("TrainingRun", "r", "run")]},
            "spec": TWO_HOSTS.model_dump(mode="json", by_alias=True, exclude_none=True),
            "status": document(HEALING),
        }
    )
    async with answering(one.handle) as address:
        yield one, address


async def test_pods_that_are_gone_with_their_deletion_leave_a_finished_unit_that_does_not_drain(
    server: tuple[Server, str],
) -> None:
    api, address = server
    inventory, metrics, settings = Inventory(), Metrics(), Settings(runtime_image="i")
    metadata = {"name": "r", "namespace": "ns", "uid": "run", "resourceVersion": "1", "generation": 1}
    inventory.put("TrainingRun", RUN | {"metadata": metadata, "status": {"phase": "Complete"}})
    inventory.put("LearnerUnit", copy.deepcopy(api.unit))
    for host in (0, 1):
        inventory.put("Pod", {**pod(host), "status": {"phase": "Succeeded"}})
    async with Cluster(Credentials(address, ssl.create_default_context()), metrics) as cluster:

        async def look(key: Key) -> None:
            if key == UNIT:  # and not its run, which is told of the new status
                await reconcile(key)

        queue = WorkQueue(look)
        reconcile = UnitReconciler(context(settings, cluster, inventory, queue, metrics))
        working = asyncio.create_task(queue.run())
        queue.add(UNIT)
        async with asyncio.timeout(10):
            while draining(api.unit) != ("False", "Finished"):
                await asyncio.sleep(0.01)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    assert api.unit["metadata"]["resourceVersion"] == "2"


def draining(unit: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of the condition."""
    found = {each["type"]: each for each in unit["status"].get("conditions", [])}.get("Draining", {})
    return found.get("status", ""), found.get("reason", "")


async def test_a_heal_that_is_written_at_the_second_try_counts_once(server: tuple[Server, str]) -> None:
    api, address = server
    inventory, metrics, settings = Inventory(), Metrics(), Settings(runtime_image="i")
    metadata = {"name": "r", "namespace": "ns", "uid": "run", "resourceVersion": "1", "generation": 1}
    inventory.put("TrainingRun", RUN | {"metadata": metadata})
    inventory.put("LearnerUnit", copy.deepcopy(api.unit))
    for host in (0, 1):
        inventory.put("Pod", pod(host))
    async with Cluster(Credentials(address, ssl.create_default_context()), metrics) as cluster:
        queue: WorkQueue[Key] = WorkQueue(lambda key: reconcile(key))
        reconcile = UnitReconciler(context(settings, cluster, inventory, queue, metrics))
        api.touch()
        await reconcile(UNIT)
        assert api.unit["status"] == document(HEALING)
        await reconcile(UNIT)
        queue.forget(UNIT)
    assert api.unit["status"]["lastHealSeconds"] == 30.0
    figures = {sample.name: sample.value for sample in next(iter(metrics.heal_seconds.collect())).samples}
    assert figures["atoll_heal_seconds_count"] == 1.0
    stages = next(iter(metrics.heal_stage_seconds.collect())).samples
    assert {sample.value for sample in stages if sample.name.endswith("_count")} == {1.0}

"""Carries out the plan of one LearnerUnit."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_UNIT, Object
from atoll_operator.api.trainingrun import RuntimeStatus
from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import check_owner
from atoll_operator.kube.cache import Key, controller_uid
from atoll_operator.kube.client import STRATEGIC
from atoll_operator.kube.errors import AlreadyExists, Conflict, NotFound, Refused, Retry
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.plan import ledger
from atoll_operator.plan.conditions import document, only_figures, refused
from atoll_operator.plan.pods.view import PodView, Removal
from atoll_operator.plan.run.syncer_state import finishing
from atoll_operator.plan.unit.deadlines import follow
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.unit import Pace, UnitObserved, UnitPlan
from atoll_operator.reconcilers.context import ControllerContext
from atoll_operator.reconcilers.inventory import Body, Inventory, parent_key
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS, RUN_SECONDS


@dataclass(slots=True, kw_only=True)
class Memory:
    """What a reconciler remembers of one object; dropped with it."""

    uid: str
    figures_due: float = float("-inf")
    """Monotonic seconds from which figures alone are written to its status again."""


@dataclass(frozen=True, slots=True)
class StatusWriter:
    """Writes a status once per pass, not without a change, and only over the version that the plan saw."""

    cluster: Cluster
    inventory: Inventory
    queue: WorkQueue[Key]

    async def write(self, key: Key, body: Object, status: Object, memory: Memory) -> None:
        """Puts a write of progress figures off where it is not due.

        Raises:
            Conflict: the object changed meanwhile; the watch tells how.
            NotFound: it was deleted.
        """
        old = body.get("status", {})
        if status == old:
            return
        figures, now = only_figures(old, status), time.monotonic()
        if figures and now < memory.figures_due:
            self.queue.add_after(key, memory.figures_due - now)
            return
        answer = await self.cluster.write_status(body, status)
        # With jitter, because many units begin to train together.
        memory.figures_due = now + FIGURES_SECONDS[key.kind] * random.uniform(0.8, 1.0)
        self.inventory.put(key.kind, answer)
        # The watch tells nothing new about a write of our own.
        if not figures and (run := parent_key(key.kind, body)) is not None:
            self.queue.add_spaced(run, RUN_SECONDS)


@dataclass(slots=True, kw_only=True)
class UnitMemory(Memory):
    """With how the unit has stepped, for the detection of hangs."""

    pace: Pace | None = None


class UnitReconciler:
    """Called with the key of a unit by one worker at a time."""

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._metrics, self._syncers = context, context.metrics, context.syncers
        self._cluster, self._inventory, self._queue = context.cluster, context.inventory, context.queue
        self._status = StatusWriter(context.cluster, context.inventory, context.queue)
        self._memory: dict[Key, UnitMemory] = {}

    async def __call__(self, key: Key) -> None:
        body = self._inventory.live(key)
        if body is None:
            self._queue.forget(key)
            self._memory.pop(key, None)
            return
        uid = body["metadata"]["uid"]
        if (memory := self._memory.get(key)) is None or memory.uid != uid:
            memory = self._memory[key] = UnitMemory(uid=uid)
        now = time.time()
        unit = self._observe(key, body, now)
        plan = plan_unit(unit)
        if plan.advance and plan.doubtful:
            plan = await self._confirmed(key, body, now)
        if plan.advance:
            await self._advance(key, body, plan, now)
            return
        refusal = await self._act(key, body, plan)
        if not refusal and (plan.create or self._any_gone(key, uid, plan.remove)):
            self._queue.add(key)  # the next pass says in one write what has come of it
            return
        if refusal:
            plan = replace(plan, status=refused(plan.status, unit.status, "Scheduled", refusal, now))
        await self._status.write(key, body, document(plan.status), self._memory[key])
        self._context.recorder.tell(body, plan.notices, now)
        if plan.healed_seconds is not None:
            self._metrics.heal_seconds.observe(plan.healed_seconds)
        for stage, seconds in plan.heal_stages or ():
            if seconds is not None:
                self._metrics.heal_stage_seconds.labels(stage).observe(seconds)
        if plan.wake is not None:
            self._queue.add_after(key, plan.wake - now)
        if refusal:
            raise Retry(5.0, refusal)

    async def _confirmed(self, key: Key, body: Body, now: float) -> UnitPlan:
        """The plan by a fresh list of pods: a watch that lags behind another operator must not cost an incarnation."""
        pods, _ = await self._cluster.list("Pod", key.namespace, f"{LABEL_UNIT}={key.name}")
        self._inventory.replace_pods(key, pods)
        return plan_unit(self._observe(key, body, now))

    async def _advance(self, key: Key, body: Body, plan: UnitPlan, now: float) -> None:
        """The new incarnation, or that one is told to go, is durable before anything of the old one is touched."""
        await self._status.write(key, body, document(plan.status), self._memory[key])
        counted = plan.status.restart_count > body.get("status", {}).get("restartCount", 0)
        if counted and (failure := plan.status.last_failure) is not None:
            self._metrics.restarts.labels(failure.reason).inc()
        self._queue.add(key)
        self._context.recorder.tell(body, plan.notices, now)

    def _observe(self, key: Key, body: Body, now: float) -> UnitObserved:
        unit = body.unit
        run_key = Key("TrainingRun", key.namespace, unit.spec.run)
        run = self._inventory.live(run_key)
        if run is not None and controller_uid(body) not in ("", run["metadata"]["uid"]):
            run = None  # a unit of an earlier run of this name, on its way out
        syncer = self._syncers.state(run_key, run["metadata"]["uid"] if run is not None else "")
        metadata, status, memory = body["metadata"], syncer.status, self._memory[key]
        pods = self._inventory.pods_of(key, metadata["uid"])
        if any(pod.exit_code == 0 for pod in pods):
            self._syncers.poke(run_key)
        report, answering_since = syncer.report_of(key.name), syncer.serving_since
        own = status.ledger.get(key.name) if status is not None else None
        memory.pace = follow(memory.pace, report, answering_since, now)
        return UnitObserved(
            now=now,
            name=key.name,
            namespace=key.namespace,
            uid=metadata["uid"],
            generation=metadata["generation"],
            spec=unit.spec,
            status=unit.status,
            pods=pods,
            annotations=metadata.get("annotations", {}),
            **self._wishes(run),
            finishing=status is not None and finishing(status),
            report=report,
            share=ledger.share(own, syncer.merged),
            ledger=ledger.shown(own, status.fragments) if status is not None and own is not None else None,
            answering_since=answering_since,
            heard=syncer.heard,
            pace=memory.pace,
            nodes=self._inventory.nodes_of(pods),
            sees_nodes=self._inventory.sees_nodes,
            sound_chips=self._inventory.sound_chips((unit.spec.accelerator, unit.spec.topology)),
        )

    def _wishes(self, run: Body | None) -> dict[str, Any]:
        """What the run wants of its units: fields of `UnitObserved`."""
        if run is None:
            return {"stop": "RunNotFound"}
        spec, status = run.run_spec, run.get("status", {})
        over, held = status.get("phase") in ("Complete", "Failed"), status.get("runtime")
        return {
            "stop": "Finished" if over else "Suspended" if spec.suspend else "",
            "recovery": spec.recovery,
            "begun": status.get("globalStep", 0) > 0,
            "settings": self._context.pod_settings(
                run["metadata"]["name"], spec, held and RuntimeStatus.model_validate(held)
            ),
        }

    async def _act(self, key: Key, body: Body, plan: UnitPlan) -> str:
        """Creates and deletes at the same time, then tells; returns why the API server refused, or nothing."""
        removes = (remove_pod(self._context, key.namespace, removal) for removal in plan.remove)
        refusal = ""
        try:
            if plan.service is not None:
                # A Service holds nothing of its unit, so a new unit of the name need not wait for the collector.
                await self._context.applier.apply(plan.service, inherit=True)
            await gather_bounded((*map(self._create, plan.create), *removes))
        except Refused as error:
            refusal = str(error)
        try:
            await gather_bounded(self._renew(key, pod, plan.status.incarnation) for pod in plan.renew)
        except Refused as error:
            return refusal or str(error)
        return refusal

    def _any_gone(self, key: Key, uid: str, removals: Sequence[Removal]) -> bool:
        """Whether one of these pods is gone for good by now: no watch tells of what the store knows already."""
        left = {pod.uid for pod in self._inventory.pods_of(key, uid)}
        return any(removal.uid not in left for removal in removals)

    async def _renew(self, key: Key, pod: PodView, incarnation: int) -> None:
        told = {ANNOTATION_INCARNATION: str(incarnation)}
        try:
            body = await self._cluster.patch_metadata(
                "Pod", key.namespace, pod.name, pod.uid, annotations=told
            )
        except (NotFound, Conflict):
            return  # the watch tells of its loss
        self._inventory.put("Pod", body)

    async def _create(self, pod: Object) -> None:
        metadata = pod["metadata"]
        try:
            created = await self._cluster.create(pod)
        except AlreadyExists:
            created = await self._cluster.get("Pod", metadata["namespace"], metadata["name"])
            check_owner(created, "Pod", metadata["ownerReferences"][0], LABELS)
        self._inventory.put("Pod", created)


async def remove_pod(context: ControllerContext, namespace: str, removal: Removal) -> None:
    """Deletes that very pod, and no other of its name, and has the inventory know at once. Without a grace period
    its object is gone afterwards.

    Raises:
        ApiError: it was refused.
    """
    name, uid = removal.name, removal.uid
    try:
        if removal.finalizer:
            remove = {"$deleteFromPrimitiveList/finalizers": [removal.finalizer]}
            await context.cluster.patch_metadata("Pod", namespace, name, uid, STRATEGIC, **remove)
        answer: Object = await context.cluster.delete("Pod", namespace, name, uid, removal.grace_seconds)
    except (NotFound, Conflict):
        answer = {}
    if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
        context.inventory.put("Pod", answer)
    else:
        context.inventory.drop("Pod", {"metadata": {"name": name, "namespace": namespace, "uid": uid}})

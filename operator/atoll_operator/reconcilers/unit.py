"""Carries out the plan of one LearnerUnit."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_UNIT, Object
from atoll_operator.api.trainingrun import RuntimeStatus
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.cluster import LABELS
from atoll_operator.kube.apply import check_owner
from atoll_operator.kube.cache import Key, controller_uid
from atoll_operator.kube.errors import AlreadyExists, Conflict, NotFound, Retry
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.plan.conditions import document, only_figures, refused
from atoll_operator.plan.pods.view import PodView, Removal
from atoll_operator.plan.run.plan import RunPlan
from atoll_operator.plan.unit.deadlines import follow
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.unit import Pace, UnitObserved, UnitPlan
from atoll_operator.reconcilers.context import REFUSED_SECONDS, ControllerContext, refusal_of
from atoll_operator.reconcilers.inventory import Body, parent_key
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS, RUN_SECONDS


@dataclass(slots=True)
class Memory:
    """What a reconciler remembers of one object; dropped with it."""

    uid: str
    figures_due: float = float("-inf")
    """Monotonic seconds from which figures alone are written to its status again."""
    pace: Pace | None = None
    """How a unit has stepped, for the detection of hangs; by the monotonic clock."""
    certificates: RunCertificates | None = None
    """Of a run."""
    orders: object = None
    """What a run's units were woken for last: whether it is over, whether it is suspended, how units recover."""


class Reconciler:
    """The work queue calls it with the key of an object, never twice at the same time for one key."""

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._metrics = context, context.metrics
        self._syncers, self._evaluators = context.syncers, context.evaluators
        self._cluster, self._inventory, self._queue = context.cluster, context.inventory, context.queue
        self._memory: dict[Key, Memory] = {}

    async def __call__(self, key: Key) -> None:
        body, now = self._inventory.live(key), time.time()
        if body is None:
            self._queue.forget(key)
            if self._memory.pop(key, None) is not None:
                self._deleted(key)
            return
        uid = body["metadata"]["uid"]
        if (memory := self._memory.get(key)) is None or memory.uid != uid:
            memory = self._memory[key] = Memory(uid)
        await self._reconcile(key, body, memory, now)

    def _deleted(self, key: Key) -> None:
        """The object was deleted, or is being deleted."""

    async def _reconcile(self, key: Key, body: Body, memory: Memory, now: float) -> None:
        """One pass over an object."""
        raise NotImplementedError

    async def _write(self, key: Key, body: Object, status: Object, memory: Memory) -> None:
        """Writes a status once per pass, not without a change, and only over the version that the plan saw. Puts a
        write of progress figures off where it is not due.

        Raises:
            Conflict: the object changed meanwhile; the watch tells how.
            NotFound: it was deleted.
        """
        old = body.get("status", {})
        if status == old:
            return
        figures, now = only_figures(old, status), time.monotonic()
        if figures and now < memory.figures_due:
            self._queue.add_after(key, memory.figures_due - now)
            return
        answer = await self._cluster.write_status(body, status)
        # With jitter, because many units begin to train together.
        memory.figures_due = now + FIGURES_SECONDS[key.kind] * random.uniform(0.8, 1.0)
        self._inventory.put(key.kind, answer)
        # The watch tells nothing new about a write of our own.
        if not figures and (run := parent_key(key.kind, body)) is not None:
            self._queue.add(run, RUN_SECONDS)

    async def _conclude(
        self, key: Key, body: Body, memory: Memory, plan: RunPlan | UnitPlan, now: float
    ) -> None:
        """Writes the status, then the Events, and sees to the next pass."""
        await self._write(key, body, document(plan.status), memory)
        self._context.recorder.tell(body, plan.notices, now)
        if plan.wake is not None:
            self._queue.add_after(key, plan.wake - now)


class UnitReconciler(Reconciler):
    """Reconciles LearnerUnits."""

    async def _reconcile(self, key: Key, body: Body, memory: Memory, now: float) -> None:
        unit = self._observe(key, body, memory, now)
        plan = plan_unit(unit)
        if plan.advance and plan.doubtful:  # a watch that lags behind must cost no incarnation
            pods, _ = await self._cluster.list("Pod", key.namespace, f"{LABEL_UNIT}={key.name}")
            self._inventory.replace_pods(key, pods)
            plan = plan_unit(self._observe(key, body, memory, now))
        if plan.advance:
            # Durable before anything of the old incarnation is touched.
            await self._conclude(key, body, memory, plan, now)
            self._queue.add(key)
            if plan.status.restart_count > unit.status.restart_count and plan.status.last_failure is not None:
                self._metrics.restarts.labels(plan.status.last_failure.reason).inc()
            return
        refusal = await refusal_of(self._act(key, plan))
        if not refusal and (plan.create or self._any_gone(key, unit.uid, plan.remove)):
            self._queue.add(key)  # the next pass says in one write what has come of it
            return
        if refusal:
            plan = replace(plan, status=refused(plan.status, unit.status, "Scheduled", refusal, now))
        await self._conclude(key, body, memory, plan, now)
        if plan.healed_seconds is not None:
            self._metrics.heal_seconds.observe(plan.healed_seconds)
        for stage, seconds in plan.heal_stages or ():
            if seconds is not None:
                self._metrics.heal_stage_seconds.labels(stage).observe(seconds)
        if refusal:
            raise Retry(REFUSED_SECONDS, refusal)

    def _observe(self, key: Key, body: Body, memory: Memory, now: float) -> UnitObserved:
        unit, metadata = body.unit, body["metadata"]
        run_key = Key("TrainingRun", key.namespace, unit.spec.run)
        run = self._inventory.live(run_key)
        if run is not None and controller_uid(body) not in ("", run["metadata"]["uid"]):
            run = None  # a unit of an earlier run of this name, on its way out
        syncer = self._syncers.state(run_key, run["metadata"]["uid"] if run is not None else "")
        pods = self._inventory.pods_of(key, metadata["uid"])
        if any(pod.exit_code == 0 for pod in pods):
            self._syncers.poke(run_key)
        report, monotonic = syncer.report_of(key.name), time.monotonic()
        pace = memory.pace = follow(memory.pace, report, syncer.serving_since, monotonic)
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
            syncer=syncer.dated(now - monotonic),
            pace=pace and replace(pace, since=pace.since + now - monotonic),
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

    async def _act(self, key: Key, plan: UnitPlan) -> None:
        """Carries out the plan for the Service, then that for the pods, all at the same time. Raises Refused."""
        if plan.service is not None:
            # A Service holds nothing of its unit, so a new unit of the name need not wait for the collector.
            await self._context.applier.apply(plan.service, inherit=True)
        removes = (self._context.remove_pod(key.namespace, removal) for removal in plan.remove)
        renewals = (self._renew(key, pod, plan.status.incarnation) for pod in plan.renew)
        await gather_bounded((*map(self._create, plan.create), *removes, *renewals))

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

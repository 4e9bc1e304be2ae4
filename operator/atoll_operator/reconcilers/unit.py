"""Carries out the plan of one LearnerUnit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_UNIT, Object
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.kube.apply import found_or_created
from atoll_operator.kube.cache import Key, controller_uid
from atoll_operator.kube.client import AT_ONCE, CONNECTIONS
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry, Unreadable
from atoll_operator.kube.queue import gather_bounded
from atoll_operator.plan.conditions import document, refused
from atoll_operator.plan.limits import unit_claim
from atoll_operator.plan.pods.template import DRAIN_SECONDS
from atoll_operator.plan.pods.view import PodView, removals, view
from atoll_operator.plan.unit.deadlines import follow
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import UnitObserved, UnitPlan
from atoll_operator.reconcilers.body import Body
from atoll_operator.reconcilers.controller import REFUSED_SECONDS, Controller, Memory, Reconciler, refusal_of
from atoll_operator.reconcilers.wakeups import CONDITIONS, SOON_SECONDS


class UnitReconciler(Reconciler):
    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        # Of all units together, so that connections are left for the pods that other units create.
        self._renewals = asyncio.Semaphore(AT_ONCE)

    async def _reconcile(self, key: Key, body: Body, memory: Memory, now: float) -> None:
        try:
            unit = self._observe(key, body, memory, now)
            plan = plan_unit(unit)
        except Unreadable as error:
            old = body.status_of(LearnerUnitStatus)
            status = refused(old, old, "Scheduled", str(error), now, "SpecInvalid")
            return await self._write(key, body, document(status), memory)
        if plan.advance and plan.needs_fresh_list:  # a lagging watch must not cost an incarnation
            pages = self._cluster.pages("Pod", key.namespace, f"{LABEL_UNIT}={key.name}")
            await self._inventory.replace_pods(key, pages)
            plan = plan_unit(self._observe(key, body, memory, now))
        if plan.advance:
            # Write this before anything of the old incarnation is touched.
            await self._conclude(key, body, memory, plan, now, partial(self._count, unit.status, plan.status))
            self._queue.add(key)
            return
        refusal = await self._act(key, plan)
        if not refusal and (plan.create or plan.remove):  # the watch may report nothing new about these
            self._queue.add(key, *((0.0, "") if plan.remove else (SOON_SECONDS, CONDITIONS)))
            return
        plan = describe(unit, plan)
        if refusal:
            plan = replace(plan, status=refused(plan.status, unit.status, "Scheduled", refusal, now))
        await self._conclude(key, body, memory, plan, now, partial(self._count, unit.status, plan.status))
        if refusal:
            raise Retry(REFUSED_SECONDS, refusal)

    async def _end(self, key: Key, body: Body) -> None:
        """Deletes its pods, which the garbage collector keeps as long as the unit. They no longer count in limits."""
        pods = self._inventory.pods_of(key, body["metadata"]["uid"])
        remove, _ = removals(pods, DRAIN_SECONDS, False, time.time())
        await gather_bounded((self._remove_pod(key.namespace, each) for each in remove), CONNECTIONS)

    def _count(self, before: LearnerUnitStatus, after: LearnerUnitStatus) -> None:
        """Counts a restart and a heal once, and the heal's stages once when all of them are known."""
        if after.restart_count > before.restart_count and after.last_failure is not None:
            self._metrics.restarted(after.last_failure.reason)
        old, new = before.last_heal, after.last_heal
        if new is None or new == old:
            return
        if old is None or new.incarnation != old.incarnation:
            self._metrics.heal_seconds.observe(new.seconds)
        for stage, seconds in new.stages if new.stages.catch_up is not None else ():
            if seconds is not None:
                self._metrics.heal_stage_seconds.labels(stage).observe(seconds)

    def _observe(self, key: Key, body: Body, memory: Memory, now: float) -> UnitObserved:
        unit, metadata = body.unit, body["metadata"]
        run_key = Key("TrainingRun", key.namespace, unit.spec.run)
        run = self._inventory.live(run_key)
        if run is not None and controller_uid(body) not in ("", run["metadata"]["uid"]):
            run = None  # this unit of an earlier run of that name will be garbage-collected
        syncer = self._syncers.state(run_key, run["metadata"]["uid"] if run is not None else "")
        pods = self._inventory.pods_of(key, metadata["uid"])
        report, monotonic = syncer.report_of(key.name), time.monotonic()
        pace = memory.pace = follow(memory.pace, report, syncer.serving_since, syncer.heard_at)
        return UnitObserved(
            now=now,
            name=key.name,
            namespace=key.namespace,
            uid=metadata["uid"],
            owned=bool(controller_uid(body)),
            unknown=body.unknown,
            generation=metadata["generation"],
            spec=unit.spec,
            status=unit.status,
            pods=pods,
            earlier=() if unit.status.incarnation else self._inventory.pods_of(key, metadata["uid"], False),
            annotations=metadata.get("annotations", {}),
            **self._from_run(run),
            # A unit that a run owns waits with its run.
            waits="" if controller_uid(body) else self._room(key, unit_claim(metadata, unit)).message,
            syncer=syncer.dated(now - monotonic),
            pace=pace and replace(pace, since=pace.since + now - monotonic),
            nodes=self._inventory.nodes_of(pods),
            sees_nodes=self._inventory.sees_nodes,
            sound_chips=self._inventory.sound_chips(unit.spec),
        )

    def _from_run(self, run: Body | None) -> dict[str, Any]:
        """What the run wants of its units, as fields of `UnitObserved`."""
        if run is None:
            return {"stop": "RunNotFound"}
        spec, status = run.for_units.spec, run.for_units.status
        return {
            "stop": self._stop(spec, status),
            "recovery": spec.recovery,
            "communication": spec.communication,
            "codec": spec.outer.codec,
            "begun": status.global_step > 0,
            "settings": self._pod_settings(run["metadata"]["name"], spec, status.runtime),
        }

    async def _act(self, key: Key, plan: UnitPlan) -> str:
        """Carries out the plan. After the Service it creates and deletes pods, because a heal waits for the scheduler.
        Then it renews the pods that stay. Returns why the API server refused something; empty if it did not."""
        if plan.service is not None and (refusal := await refusal_of(self._applier.apply(plan.service))):
            return refusal
        removes = (self._remove_pod(key.namespace, removal) for removal in plan.remove)
        renewals = (self._renew(key, pod, plan.status.incarnation) for pod in plan.renew)
        works = chain(self._creations(plan.create), removes)
        refusal = await refusal_of(gather_bounded(works, CONNECTIONS))
        return await refusal_of(gather_bounded(renewals, AT_ONCE)) or refusal

    async def _renew(self, key: Key, pod: PodView, incarnation: int) -> None:
        change = {ANNOTATION_INCARNATION: str(incarnation)}
        where = "Pod", key.namespace, pod.name, pod.uid
        async with self._renewals:
            with suppress(NotFound, Conflict):  # the watch will report its deletion
                answer = await self._cluster.patch_metadata(*where, annotations=change)
                self._inventory.put("Pod", answer)
                if view(answer) != replace(pod, incarnation=incarnation):
                    self._queue.add(key)  # it may have failed, and the watch has nothing new to report

    def _creations(self, makes: Iterable[Callable[[], Object]]) -> Iterator[Coroutine[None, None, None]]:
        """Creations of the pods of a gang, which end with the first that is refused: the gang is of no use without it,
        and the refusal of thousands would show late."""
        refused = False

        async def create(make: Callable[[], Object]) -> None:
            nonlocal refused
            try:
                self._inventory.put("Pod", await found_or_created(self._cluster, make()))
            except Refused:
                refused = True
                raise

        for make in makes:
            if refused:
                return
            yield create(make)

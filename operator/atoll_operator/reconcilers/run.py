"""Reconciles a TrainingRun: observe, plan, act, write the status."""

from __future__ import annotations

import contextlib
import datetime
import logging
import time
from collections.abc import Awaitable, Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from atoll_operator.api.common import EVALUATED
from atoll_operator.api.group import Object
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.certificates.members import RunOwner, members, unit_member
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.kube.cache import Key, key_of
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.kube.logs import tell
from atoll_operator.plan.conditions import document, refused
from atoll_operator.plan.pods.names import tls_secret
from atoll_operator.plan.run.elastic import certified_units
from atoll_operator.plan.run.observed import RunObserved
from atoll_operator.plan.run.plan import Reference, RunPlan, plan_run
from atoll_operator.plan.run.status import invalid
from atoll_operator.reconcilers.context import ControllerContext
from atoll_operator.reconcilers.observe_run import observe_run, problems
from atoll_operator.reconcilers.unit import Memory, StatusWriter, remove_pod
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS

REFUSED_SECONDS = 5.0
"""Until the next pass after the API server refused an object."""


@dataclass(slots=True, kw_only=True)
class RunMemory(Memory):
    """What is remembered of one run."""

    seen: float
    """Unix seconds of the first pass."""
    certificates: RunCertificates
    orders: tuple[bool, bool, RecoverySpec] | None = None
    """What its units were woken for last: whether it is over, whether it is suspended, how units recover."""


class RunReconciler:
    """The work queue calls it with the key of a run, never twice at the same time for one key."""

    def __init__(self, context: ControllerContext) -> None:
        self._context, self._syncers, self._evaluators = context, context.syncers, context.evaluators
        self._cluster, self._inventory, self._queue = context.cluster, context.inventory, context.queue
        self._status = StatusWriter(context.cluster, context.inventory, context.queue)
        self._memory: dict[Key, RunMemory] = {}

    async def __call__(self, key: Key) -> None:
        body, now = self._inventory.live(key), time.time()
        if body is None:
            self._forget(key)
            return
        uid = body["metadata"]["uid"]
        memory = self._remember(key, uid, now)
        old = TrainingRunStatus.model_validate(body.get("status", {}))
        try:
            run = observe_run(self._context, body, old, memory.seen)
        except ValidationError as error:
            status = invalid(old, body["metadata"]["generation"], problems(error), now)
            return await self._status.write(key, body, document(status), memory)
        plan = plan_run(run, now)
        if plan.delete_run:
            with contextlib.suppress(NotFound):
                await self._cluster.delete("TrainingRun", key.namespace, key.name, uid)
            return
        if plan.apply_units and not await self._exists(key, uid):
            return
        refusal = await _refusal(self._act(key, run, plan, memory.certificates))
        evaluator_refusal = await _refusal(self._apply(plan.apply_evaluator))
        status = plan.status
        for condition, message in (("Degraded", refusal), (EVALUATED, evaluator_refusal)):
            if message:
                status = refused(status, old, condition, message, now)
        await self._status.write(key, body, document(status), memory)
        self._context.recorder.tell(body, plan.notices, now)
        self._wake(key, run, plan, memory, now)
        if refusal or evaluator_refusal:
            raise Retry(REFUSED_SECONDS, refusal or evaluator_refusal)

    def _remember(self, key: Key, uid: str, now: float) -> RunMemory:
        memory = self._memory.get(key)
        if memory is None or memory.uid != uid:
            owner = RunOwner(key.namespace, key.name, uid)
            certificates = RunCertificates(self._cluster, self._inventory.cache, owner)
            memory = self._memory[key] = RunMemory(uid=uid, seen=now, certificates=certificates)
        return memory

    async def _exists(self, key: Key, uid: str) -> bool:
        """Ask the API server before units are created: watches of runs and units may lag differently."""
        try:
            found = await self._cluster.get("TrainingRun", key.namespace, key.name)
        except NotFound:
            return False
        return found["metadata"]["uid"] == uid and "deletionTimestamp" not in found["metadata"]

    async def _act(self, key: Key, run: RunObserved, plan: RunPlan, certificates: RunCertificates) -> None:
        """Carry out the plan in its order, but for the evaluator and the status. Raises Refused."""
        await self._poll(key, run, plan, certificates)
        await self._apply(plan.apply)
        for pod in plan.replace_pods:
            tell(logging.INFO, "replaces an outdated pod", object=str(key), pod=pod.name)
            with contextlib.suppress(NotFound, Conflict):
                await self._cluster.delete(pod.kind, key.namespace, pod.name, pod.uid)
        for removal in plan.release_pods:
            await remove_pod(self._context, key.namespace, removal)
            self._queue.add(key)  # the watch has nothing new to report
        certified = certificates if plan.poll_syncer else None
        await gather_bounded((self._apply_unit(body, certified) for body in plan.apply_units), AT_ONCE)
        for each in plan.delete:
            await self._context.applier.remove(run.uid, Key(each.kind, key.namespace, each.name))
        await gather_bounded((self._delete_unit(run, unit) for unit in plan.delete_units), AT_ONCE)

    async def _poll(self, key: Key, run: RunObserved, plan: RunPlan, certificates: RunCertificates) -> None:
        """Start or stop polling, with certificates for everybody who takes part."""
        if not plan.poll_syncer and run.spec.suspend:
            self._syncers.forget(key)
        elif not plan.poll_syncer:
            self._syncers.stop(key)
        if not plan.poll_evaluator:
            self._evaluators.forget(key)
        if not (plan.poll_syncer or plan.poll_evaluator):
            return
        shards = run.spec.syncer.shards
        everybody = members(certificates.run, shards, certified_units(run), plan.poll_evaluator)
        await certificates.ensure(everybody, _now())
        if plan.poll_syncer:
            self._syncers.ensure(key, run.uid, shards, certificates.context)
            self._syncers.save(key, plan.save_checkpoint)
            self._syncers.request(key, plan.wanted_checkpoint)
        if plan.poll_evaluator:
            self._evaluators.ensure(key, run.uid, 1, certificates.context)

    async def _apply(self, bodies: Iterable[Object]) -> None:
        for body in bodies:
            await self._context.applier.apply(body)

    async def _apply_unit(self, body: Object, certificates: RunCertificates | None) -> None:
        """Its certificate comes first, if the run has certificates by now."""
        if certificates is not None:
            await certificates.ensure([unit_member(body["metadata"]["name"])], _now())
        unit = await self._cluster.apply(body)
        self._inventory.put("LearnerUnit", unit)
        self._queue.add(key_of("LearnerUnit", unit))

    async def _delete_unit(self, run: RunObserved, unit: Reference) -> None:
        """Its certificate goes first, because the unit's existence shows that it may exist. The garbage collector
        deletes pods and Service."""
        await self._context.applier.remove(run.uid, Key("Secret", run.namespace, tls_secret(unit.name)))
        with contextlib.suppress(NotFound, Conflict):
            await self._cluster.delete("LearnerUnit", run.namespace, unit.name, unit.uid)

    def _wake(self, key: Key, run: RunObserved, plan: RunPlan, memory: RunMemory, now: float) -> None:
        """Enqueue the run and its units for what comes next: the units now if the run is first seen, stops, resumes,
        ends, or changes how units recover; while the syncer is polled, all after a while for progress figures."""
        units, over = self._inventory.unit_keys(key), plan.status.phase in ("Complete", "Failed")
        orders = over, run.spec.suspend, run.spec.recovery
        changed, memory.orders = memory.orders != orders, orders
        for unit in units if changed else ():
            self._queue.add(unit)
        for each in (key, *units) if plan.poll_syncer else ():
            self._queue.add_after(each, FIGURES_SECONDS[each.kind])
        if plan.again or (changed and over):
            self._queue.add(key)
        if plan.wake is not None:
            self._queue.add_after(key, plan.wake - now)

    def _forget(self, key: Key) -> None:
        """The run was deleted: the garbage collector deletes its objects. Units of users stay without pods."""
        self._syncers.forget(key)
        self._evaluators.forget(key)
        self._queue.forget(key)
        if self._memory.pop(key, None) is not None:
            for unit in self._inventory.unit_keys(key):
                self._queue.add(unit)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


async def _refusal(work: Awaitable[None]) -> str:
    """Why the API server refused an object; empty if it did not."""
    try:
        await work
    except Refused as error:
        return str(error)
    return ""

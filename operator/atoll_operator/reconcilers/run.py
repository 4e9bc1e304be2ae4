"""Carries out the plan of one TrainingRun."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from atoll_operator.api.common import EVALUATED
from atoll_operator.api.group import Object
from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.certificates.authority import RunOwner, evaluator_member, members, unit_member
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.kube.cache import Key, key_of
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry, Unreadable
from atoll_operator.kube.logs import log
from atoll_operator.kube.queue import gather_bounded
from atoll_operator.plan.conditions import document, refused
from atoll_operator.plan.pods.names import config_map, evaluator, syncer, tls_secret
from atoll_operator.plan.run.elastic import certified_units, places
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.run.status import invalid
from atoll_operator.reconcilers.body import Body
from atoll_operator.reconcilers.controller import REFUSED_SECONDS, Memory, Reconciler, refusal_of
from atoll_operator.reconcilers.inventory import PARENT


class RunReconciler(Reconciler):
    def _deleted(self, key: Key) -> None:
        """The garbage collector deletes its objects. Units of users stay without pods."""
        self._syncers.forget(key)
        self._evaluators.forget(key)
        for unit in self._inventory.unit_keys(key):
            self._queue.add(unit)

    async def _reconcile(self, key: Key, body: Body, memory: Memory, now: float) -> None:
        if (certificates := memory.certificates) is None:
            owner = RunOwner(key.namespace, key.name, body["metadata"]["uid"])
            certificates = memory.certificates = RunCertificates(self._cluster, self._inventory, owner)
        try:
            run = self._observe(key, body)
            plan = plan_run(run, now)
        except Unreadable as error:
            old = body.status_of(TrainingRunStatus)
            status = invalid(old, body["metadata"]["generation"], str(error), now)
            await self._write(key, body, document(status), memory)
            return await self._attend(key, old.syncer_shards, certificates)
        if plan.delete_run:
            with contextlib.suppress(NotFound):
                await self._cluster.delete("TrainingRun", key.namespace, key.name, run.uid)
            return
        try:
            refusal = await refusal_of(self._act(key, run, plan, certificates))
            evaluator_refusal = await refusal_of(self._evaluate(key, run, plan, certificates))
        except Retry as error:  # an earlier run of this name has left an object
            status = refused(plan.status, run.status, "Ready", str(error), now, "NameTaken")
            then = partial(self._wake, key, run, status)
            await self._conclude(key, body, memory, replace(plan, status=status), now, then)
            raise
        for condition, message in (("Degraded", refusal), (EVALUATED, evaluator_refusal)):
            if message:
                plan = replace(plan, status=refused(plan.status, run.status, condition, message, now))
        await self._conclude(key, body, memory, plan, now, partial(self._wake, key, run, plan.status))
        if refusal or evaluator_refusal:
            raise Retry(REFUSED_SECONDS, refusal or evaluator_refusal)

    async def _attend(self, key: Key, shards: int, certificates: RunCertificates) -> None:
        """Poll the syncer of a run that cannot be read, and keep the certificates of what it has, while it has syncer
        pods. Raises Refused, and Retry while a Secret of an earlier run of this name exists."""
        inventory, uid = self._inventory, certificates.run.uid
        if not (shards and inventory.set_pods(key, uid, syncer(key.name))):
            return self._syncers.stop(key)
        bodies = (inventory.body(unit) for unit in inventory.unit_keys(key))
        units = [_unit_facts(body, uid) for body in bodies if body]
        certified = {
            unit.name: "" if unit.owned else unit.uid for unit in units if unit.owned or unit.by_hand
        }
        names = (unit.name for unit in units)
        refusal = await self._poll(key, shards, certified, names, certificates)
        if inventory.set_pods(key, uid, evaluator(key.name)):
            await certificates.ensure([evaluator_member(certificates.run)], datetime.now(UTC))
        if refusal:
            raise Refused(refusal)

    def _observe(self, key: Key, body: Body) -> RunObserved:
        """Raises Unreadable."""
        inventory, metadata, spec, status = self._inventory, body["metadata"], body.run.spec, body.run.status
        uid = metadata["uid"]
        syncer_pods = inventory.set_pods(key, uid, syncer(key.name))
        evaluator_pods = inventory.set_pods(key, uid, evaluator(key.name))
        units = {unit.key.name: unit.value for unit in inventory.by(PARENT, key, "LearnerUnit")}
        others = places(key.name, spec).keys() - units.keys()
        units |= {name: inventory.body(Key("LearnerUnit", key.namespace, name)) for name in others}
        return RunObserved(
            name=key.name,
            namespace=key.namespace,
            uid=uid,
            generation=metadata["generation"],
            spec=spec,
            status=status,
            unknown=body.unknown,
            configured=inventory.get(Key("ConfigMap", key.namespace, config_map(key.name))) is not None,
            settings=self._pod_settings(key.name, spec, status.runtime),
            units={name: _unit_facts(unit, uid) for name, unit in units.items() if unit},
            annotations=metadata.get("annotations", {}),
            syncer_pods=syncer_pods,
            nodes=inventory.nodes_of((*syncer_pods, *evaluator_pods)),
            syncer=self._syncers.state(key, uid).dated(time.time() - time.monotonic()),
            evaluator=self._evaluators.state(key, uid),
            evaluator_pods=evaluator_pods,
            room=self._room(key, body.claim),
        )

    async def _act(self, key: Key, run: RunObserved, plan: RunPlan, certificates: RunCertificates) -> None:
        """Carry out the plan, except for the evaluator and the status. Raises Refused. Units are deleted first: a quota
        may refuse new ones until then."""
        await gather_bounded((self._delete_unit(run, unit) for unit in plan.delete_units), AT_ONCE)
        refusal = ""
        if plan.poll_syncer:
            units, shards = certified_units(run), run.spec.syncer.shards
            refusal = await self._poll(key, shards, units, run.units, certificates)
            self._syncers.order(key, plan.checkpoint)
        else:
            end = self._syncers.forget if run.spec.suspend else self._syncers.stop
            end(key)
        await self._apply(plan.apply)
        for removal in plan.remove_pods:
            log(logging.INFO, "replaces a pod", object=str(key), pod=removal.name)
            await self._remove_pod(key.namespace, removal)
            self._queue.add(key)  # the watch has nothing new to report
        certified = certificates if plan.poll_syncer else None
        await gather_bounded((self._apply_unit(body, certified) for body in plan.apply_units), AT_ONCE)
        for kind, name in plan.delete:
            await self._applier.remove(run.uid, Key(kind, key.namespace, name))
        if refusal:
            raise Refused(refusal)

    async def _poll(
        self,
        key: Key,
        shards: int,
        certified: Mapping[str, str],
        units: Iterable[str],
        certificates: RunCertificates,
    ) -> str:
        """Start polling, with certificates for syncer and units (`certified_units`). Returns why one of a unit made by
        hand was refused: its Secret's name may be taken, and the run does not wait for that."""
        now = datetime.now(UTC)
        everybody = members(certificates.run, shards, certified)
        await certificates.ensure([each for each in everybody if not each.unit_uid], now)
        self._syncers.ensure(key, certificates.run.uid, shards, certificates.context)
        self._syncers.keep(key, units)
        by_hand = [each for each in everybody if each.unit_uid]
        try:
            return await refusal_of(certificates.ensure(by_hand, now))
        except Retry as error:  # an earlier unit of its name has left a Secret
            self._queue.add_after(key, error.seconds)
            return ""

    async def _evaluate(
        self, key: Key, run: RunObserved, plan: RunPlan, certificates: RunCertificates
    ) -> None:
        """Carry out the plan for the evaluator, on which nothing else depends. Raises Refused."""
        if plan.poll_evaluator:
            await certificates.ensure([evaluator_member(certificates.run)], datetime.now(UTC))
            self._evaluators.ensure(key, run.uid, 1, certificates.context)
        else:
            self._evaluators.forget(key)
        await self._apply(plan.apply_evaluator)

    async def _apply(self, bodies: Iterable[Object]) -> None:
        for body in bodies:
            await self._applier.apply(body)

    async def _apply_unit(self, body: Object, certificates: RunCertificates | None) -> None:
        """Create its certificate before the unit, if the run has certificates by now."""
        if certificates is not None:
            await certificates.ensure([unit_member(body["metadata"]["name"])], datetime.now(UTC))
        unit = await self._cluster.apply(body)
        self._inventory.put("LearnerUnit", unit)
        self._queue.add(key_of("LearnerUnit", unit))

    async def _delete_unit(self, run: RunObserved, unit: UnitFacts) -> None:
        """Delete its certificate first, because only the unit shows that a certificate may exist. The garbage collector
        deletes pods and Service."""
        await self._applier.remove(run.uid, Key("Secret", run.namespace, tls_secret(unit.name)))
        with contextlib.suppress(NotFound, Conflict):
            await self._cluster.delete("LearnerUnit", run.namespace, unit.name, unit.uid)

    def _wake(self, key: Key, run: RunObserved, new: TrainingRunStatus) -> None:
        """Enqueue the run if its spec or phase has changed, and the units that it found if they have to follow: their
        pods can be stopped once the change is written."""
        old, changed = run.status, run.status.observed_generation != run.generation
        if changed or old.phase != new.phase:
            self._queue.add(key)
        stops = self._stop(run.spec, old) != self._stop(run.spec, new)
        for name in run.units if changed or stops or old.runtime != new.runtime else ():
            self._queue.add(Key("LearnerUnit", key.namespace, name))


def _unit_facts(body: Body, run: str) -> UnitFacts:
    found = body.facts
    return found if body.controller in ("", run) else replace(found, owned=False, ours=False)

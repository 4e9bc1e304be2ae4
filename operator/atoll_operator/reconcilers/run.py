"""Carries out the plan of one TrainingRun."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from pydantic import ValidationError

from atoll_operator.api.conditions import EVALUATED
from atoll_operator.api.group import Object, controller_uid
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.certificates.secrets import Identities
from atoll_operator.cluster import LABELS, Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.client import AT_ONCE
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry
from atoll_operator.kube.gather import gather_bounded
from atoll_operator.kube.keys import Key, key_of
from atoll_operator.kube.logs import tell
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Announcer
from atoll_operator.plan.conditions import document
from atoll_operator.plan.pods.names import evaluator, tls_secret
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.run.objects import RunObserved, UnitFacts, members
from atoll_operator.plan.run.plan import Reference, RunPlan, plan_run
from atoll_operator.plan.run.pools import names
from atoll_operator.plan.run.status import invalid, with_problem
from atoll_operator.polling.evaluator import Evaluations
from atoll_operator.polling.syncer import Feeds
from atoll_operator.reconcilers.inventory import Inventory
from atoll_operator.reconcilers.pod_removal import remove_pod
from atoll_operator.reconcilers.wakeups import status_writer
from atoll_operator.settings import Settings


class RunReconciler:
    """Called with the key of a run by one worker at a time."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        store: Inventory,
        queue: WorkQueue[Key],
        feeds: Feeds,
        evaluations: Evaluations,
        announcer: Announcer,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._feeds = feeds
        self._evaluations = evaluations
        self._identities = Identities(cluster, store.cache)
        self._announcer = announcer
        self._status = status_writer(cluster, store, queue)
        self._seen: dict[Key, tuple[str, float]] = {}
        """Uid, and Unix seconds of the first pass."""
        self._applier = Applier(cluster, store.cache, LABELS)
        self._orders: dict[Key, tuple[bool, bool, RecoverySpec]] = {}

    async def __call__(self, key: Key) -> None:
        body = self._store.live(key)
        if body is None:
            self._forget(key)
            return
        uid, now = body["metadata"]["uid"], time.time()
        known, _ = self._seen.get(key, ("", 0.0))
        if known != uid:
            self._identities.forget(known)
            self._applier.forget(known)
            self._seen[key] = uid, now
        status = TrainingRunStatus.model_validate(body.get("status", {}))
        try:
            spec = self._store.run_spec(body)
        except ValidationError as error:
            problems = "; ".join(
                f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]
            )
            await self._status.write(
                key, body, document(invalid(status, body["metadata"]["generation"], problems, now))
            )
            return
        run = self._observe(key, body, spec, status)
        plan = plan_run(run, now)
        if plan.delete:
            await self._delete(key, uid)
            return
        if plan.units and not await self._lives(key, uid):
            return
        problem = await self._act(key, run, plan)
        planned = with_problem(plan.status, status, "Degraded", problem, now) if problem else plan.status
        trouble = await self._apply(run.uid, plan.evaluator)
        planned = with_problem(planned, status, EVALUATED, trouble, now) if trouble else planned
        if not await self._status.write(key, body, document(planned)):
            return
        self._announcer.tell(body, plan.notices, now)
        self._pass_on(key, spec, planned)
        if plan.again:
            self._queue.add(key)
        if plan.wake is not None:
            self._queue.add_after(key, plan.wake - now)
        if problem or trouble:
            raise Retry(5.0, problem or trouble)

    def review(self, key: Key) -> None:
        """Has every object of the run applied again, and its Secrets looked for; a resync calls this."""
        uid, _ = self._seen.get(key, ("", 0.0))
        self._applier.forget(uid)
        self._identities.review(uid)

    async def _lives(self, key: Key, uid: str) -> bool:
        """Asked before units are made: that a run is gone is told by another watch than that its units are."""
        try:
            found = await self._cluster.get("TrainingRun", key.namespace, key.name)
        except NotFound:
            return False
        return found["metadata"]["uid"] == uid and "deletionTimestamp" not in found["metadata"]

    def _observe(
        self, key: Key, body: Object, spec: TrainingRunSpec, status: TrainingRunStatus
    ) -> RunObserved:
        uid = body["metadata"]["uid"]
        syncer_pods, evaluator_pods = self._store.syncer_pods(key), self._store.evaluator_pods(key)
        run = RunObserved(
            name=key.name,
            namespace=key.namespace,
            uid=uid,
            generation=body["metadata"]["generation"],
            spec=spec,
            status=status,
            settings=pod_settings(
                key.name,
                spec,
                status.runtime,
                image=self._settings.runtime_image,
                environment=self._settings.runtime_environment,
                pull_policy=self._settings.pull_policy,
            ),
            units={},
            syncer_pods=syncer_pods,
            nodes=self._store.nodes_of((*syncer_pods, *evaluator_pods)),
            feed=self._feeds.state(key, uid),
            seen=self._seen[key][1],
            cut=self._feeds.cut(key, uid),
            evaluator=self._evaluations.state(key, uid),
            evaluator_pods=evaluator_pods,
            evaluator_there=self._store.get(Key("StatefulSet", key.namespace, evaluator(key.name)))
            is not None,
        )
        mine = {unit["metadata"]["name"] for unit in self._store.units_of(key)}
        wanted = names(key.name, spec)
        known = (self._store.get(Key("LearnerUnit", key.namespace, name)) for name in {*wanted, *mine})
        return replace_units(run, [unit for unit in known if unit is not None], self._store)

    async def _act(self, key: Key, run: RunObserved, plan: RunPlan) -> str:
        """Secrets, objects, pods, units, in that order; returns why the API server refused, or nothing."""
        if not plan.poll and run.spec.suspend:
            self._feeds.forget(key)
        elif not plan.poll:
            self._feeds.stop(key)
        if not plan.evaluate:
            self._evaluations.forget(key)
        try:
            if plan.poll or plan.evaluate:
                shards = run.spec.syncer.shards
                context = await self._identities.ensure(
                    key.namespace, key.name, run.uid, shards, members(run), plan.evaluate
                )
                if plan.poll:
                    self._feeds.ensure(key, run.uid, shards, context)
                    self._feeds.save(key, plan.cut)
                if plan.evaluate:
                    self._evaluations.ensure(key, run.uid, context)
            for body in plan.apply:
                await self._applier.apply(run.uid, body)
            for pod in plan.renew:
                tell(
                    logging.INFO, "makes a pod anew for what the run says now", object=str(key), pod=pod.name
                )
                with contextlib.suppress(NotFound, Conflict):
                    await self._cluster.delete(pod.kind, key.namespace, pod.name, pod.uid)
            for removal in plan.release:
                await remove_pod(self._cluster, self._store, key.namespace, removal)
                self._queue.add(key)  # no watch tells of what the store knows already
            await gather_bounded((self._make(run, body, plan.poll) for body in plan.units), AT_ONCE)
            for reference in plan.remove:
                await self._applier.remove(run.uid, key.namespace, reference)
            await gather_bounded((self._retire(key, run.uid, unit) for unit in plan.retire), AT_ONCE)
        except Refused as error:
            return str(error)
        return ""

    async def _apply(self, uid: str, bodies: Iterable[Object]) -> str:
        """Returns why the API server refused one, or nothing."""
        try:
            for body in bodies:
                await self._applier.apply(uid, body)
        except Refused as error:
            return str(error)
        return ""

    async def _make(self, run: RunObserved, body: Object, identified: bool) -> None:
        """A unit, after its certificate where the run has any by now."""
        if identified:
            await self._identities.add(run.namespace, run.name, run.uid, body["metadata"]["name"])
        unit = await self._cluster.apply(body)
        self._store.put("LearnerUnit", unit)
        self._queue.add(key_of("LearnerUnit", unit))

    async def _retire(self, key: Key, uid: str, unit: Reference) -> None:
        """Its certificate, which is the run's, and then the unit: once that is gone nothing tells of the other.

        The garbage collector takes its pods and Service.
        """
        self._identities.revoke(uid, unit.name)
        await self._applier.remove(uid, key.namespace, Reference("Secret", tls_secret(unit.name)))
        try:
            await self._cluster.delete("LearnerUnit", key.namespace, unit.name, unit.uid)
        except (NotFound, Conflict):
            tell(logging.INFO, "the unit was gone already", object=f"{key.namespace}/{unit.name}")

    async def _delete(self, key: Key, uid: str) -> None:
        with contextlib.suppress(NotFound):
            await self._cluster.delete("TrainingRun", key.namespace, key.name, uid)

    def _pass_on(self, key: Key, spec: TrainingRunSpec, status: TrainingRunStatus) -> None:
        """Units have to look when the run stops, ends, is resumed, heals in another way, or is first seen."""
        over = status.phase in ("Complete", "Failed")
        orders = over, spec.suspend, spec.recovery
        if self._orders.get(key) == orders:
            return
        self._orders[key] = orders
        for unit in self._store.unit_keys(key):
            self._queue.add(unit)
        if over:
            self._queue.add(key)

    def _forget(self, key: Key) -> None:
        """The run is gone or going: the garbage collector takes its objects, we stop making them."""
        self._feeds.forget(key)
        self._evaluations.forget(key)
        self._status.forget(key)
        self._orders.pop(key, None)
        self._queue.forget(key)
        if (seen := self._seen.pop(key, None)) is not None:
            self._identities.forget(seen[0])
            self._applier.forget(seen[0])
            for unit in self._store.unit_keys(key):  # those made by hand stay, without pods
                self._queue.add(unit)


def replace_units(run: RunObserved, units: list[Object], store: Inventory) -> RunObserved:
    """The run with its units, and those of others that bear its units' names."""
    return replace(run, units={unit["metadata"]["name"]: _facts(unit, run.uid, store) for unit in units})


def _facts(body: Object, run: str, store: Inventory) -> UnitFacts:
    try:
        unit = store.unit(body)
    except ValidationError:  # another version wrote the spec
        status, spec = LearnerUnitStatus.model_validate(body.get("status", {})), None
    else:
        status, spec = unit.status, unit.spec
    metadata = body["metadata"]
    return UnitFacts(
        name=metadata["name"],
        run=body["spec"]["run"],
        status=status,
        spec=spec,
        uid=metadata["uid"],
        owned=controller_uid(body) == run and "deletionTimestamp" not in metadata,
        by_hand=controller_uid(body) == "" and "deletionTimestamp" not in metadata,
        ours=controller_uid(body) in ("", run),
        generation=metadata["generation"],
    )

"""Carries out the plan of one TrainingRun."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
from dataclasses import replace

from pydantic import ValidationError

from atoll_operator.announce import Announcer
from atoll_operator.api.group import Object, controller_uid
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.cluster import Cluster
from atoll_operator.errors import Conflict, NotFound, Refused, Retry
from atoll_operator.feed import Feeds
from atoll_operator.identities import Identities
from atoll_operator.logs import tell
from atoll_operator.plan.names import tls_secret
from atoll_operator.plan.observe import view
from atoll_operator.plan.pools import names
from atoll_operator.plan.run import Reference, RunPlan, plan_run
from atoll_operator.plan.runobjects import RunObserved, UnitFacts, pod_settings
from atoll_operator.plan.runstatus import invalid, with_problem
from atoll_operator.settings import Settings
from atoll_operator.statuswriter import StatusWriter
from atoll_operator.store import Key, Store, key_of
from atoll_operator.workqueue import WorkQueue


class RunReconciler:
    """Called with the key of a run by one worker at a time."""

    def __init__(
        self, settings: Settings, cluster: Cluster, store: Store, queue: WorkQueue[Key], feeds: Feeds
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._store = store
        self._queue = queue
        self._feeds = feeds
        self._identities = Identities(cluster)
        self._announcer = Announcer(cluster)
        self._status = StatusWriter(cluster, store, queue)
        self._uids: dict[Key, str] = {}
        self._applied: dict[tuple[str, str, str], str] = {}
        """Uid of the run, kind and name to the digest of what was applied last; empty after a removal."""
        self._orders: dict[Key, tuple[str, bool]] = {}

    async def __call__(self, key: Key) -> None:
        body = self._store.live(key)
        if body is None:
            self._forget(key)
            return
        uid = self._uids[key] = body["metadata"]["uid"]
        now = time.time()
        status = TrainingRunStatus.model_validate(body.get("status", {}))
        try:
            spec = TrainingRunSpec.model_validate(body["spec"])
        except ValidationError as error:
            problems = "; ".join(
                f"spec.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()[:5]
            )
            await self._status.write(
                key, body, invalid(status, body["metadata"]["generation"], problems, now)
            )
            return
        run = self._observe(key, body, spec, status)
        plan = plan_run(run, now)
        if plan.delete:
            await self._delete(key, uid)
            return
        problem = await self._act(key, run, plan)
        planned = with_problem(plan.status, "ObjectRefused", problem, now) if problem else plan.status
        if not await self._status.write(key, body, planned):
            return
        await self._announcer.tell(body, plan.notices, now)
        self._pass_on(key, spec, planned)
        if plan.wake is not None:
            self._queue.add_after(key, plan.wake - now)
        if problem:
            raise Retry(5.0, problem)

    def review(self) -> None:
        """Has every object applied again; a resync calls this."""
        self._applied.clear()
        self._identities.review()

    def _observe(
        self, key: Key, body: Object, spec: TrainingRunSpec, status: TrainingRunStatus
    ) -> RunObserved:
        uid = body["metadata"]["uid"]
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
                self._settings.runtime_image,
                self._settings.pull_policy,
                self._settings.runtime_environment,
            ),
            units={},
            syncer_pods=tuple(view(pod) for pod in self._store.syncer_pods(key)),
            feed=self._feeds.state(key, uid),
            cut=self._feeds.cut(key, uid),
        )
        mine = {unit["metadata"]["name"] for unit in self._store.units_of(key)}
        wanted = names(key.name, spec)
        known = (self._store.get(Key("LearnerUnit", key.namespace, name)) for name in {*wanted, *mine})
        return replace_units(run, [unit for unit in known if unit is not None])

    async def _act(self, key: Key, run: RunObserved, plan: RunPlan) -> str:
        """Secrets, objects, units, in that order; returns why the API server refused, or nothing."""
        if not plan.poll and run.spec.suspend:
            self._feeds.forget(key)
        elif not plan.poll:
            self._feeds.stop(key)
        try:
            if plan.poll:
                shards = run.spec.syncer.shards
                units = names(key.name, run.spec)
                context = await self._identities.ensure(key.namespace, key.name, run.uid, shards, units)
                self._feeds.ensure(key, run.uid, shards, context)
                self._feeds.save(key, plan.cut)
            for body in plan.apply:
                await self._apply(run.uid, body)
            for body in plan.units:
                self._store.put("LearnerUnit", await self._cluster.apply(body))
            for reference in plan.remove:
                await self._remove(key, run.uid, reference)
            for reference in plan.retire:
                await self._retire(key, run.uid, reference)
        except Refused as error:
            return str(error)
        return ""

    async def _apply(self, uid: str, body: Object) -> None:
        """Unless the very same was applied and, where we watch the kind, is still there."""
        name = (uid, body["kind"], body["metadata"]["name"])
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        watched = body["kind"] == "StatefulSet"
        if self._applied.get(name) == digest and not (
            watched and self._store.get(key_of("StatefulSet", body)) is None
        ):
            return
        answer = await self._cluster.apply(body)
        if watched:
            self._store.put("StatefulSet", answer)
        self._applied[name] = digest

    async def _remove(self, key: Key, uid: str, reference: Reference) -> None:
        name = (uid, reference.kind, reference.name)
        if self._applied.get(name) == "":
            return
        with contextlib.suppress(NotFound):
            await self._cluster.delete(reference.kind, key.namespace, reference.name)
        self._applied[name] = ""

    async def _retire(self, key: Key, uid: str, unit: Reference) -> None:
        """The garbage collector takes the unit's pods and Service; its certificate is the run's, so it goes here."""
        try:
            await self._cluster.delete("LearnerUnit", key.namespace, unit.name, unit.uid)
        except (NotFound, Conflict):
            tell(logging.INFO, "the unit was gone already", object=f"{key.namespace}/{unit.name}")
        self._identities.revoke(uid, unit.name)
        with contextlib.suppress(NotFound):
            await self._cluster.delete("Secret", key.namespace, tls_secret(unit.name))

    async def _delete(self, key: Key, uid: str) -> None:
        with contextlib.suppress(NotFound):
            await self._cluster.delete("TrainingRun", key.namespace, key.name, uid)

    def _pass_on(self, key: Key, spec: TrainingRunSpec, status: TrainingRunStatus) -> None:
        """Units have to look when the run stops, ends, is resumed, or is first seen."""
        over = status.phase in ("Complete", "Failed")
        orders = ("over" if over else "", spec.suspend)
        if self._orders.get(key) == orders:
            return
        self._orders[key] = orders
        for unit in self._store.units_of(key):
            self._queue.add(key_of("LearnerUnit", unit))
        if over:
            self._queue.add(key)

    def _forget(self, key: Key) -> None:
        """The run is gone or going: the garbage collector takes its objects, we stop making them."""
        self._feeds.forget(key)
        self._status.forget(key)
        self._orders.pop(key, None)
        self._queue.forget(key)
        uid = self._uids.pop(key, None)
        if uid is not None:
            self._identities.forget(uid)
            self._applied = {name: digest for name, digest in self._applied.items() if name[0] != uid}


def replace_units(run: RunObserved, units: list[Object]) -> RunObserved:
    """The run with its units, and those of others that bear its units' names."""
    facts = {
        unit["metadata"]["name"]: UnitFacts(
            name=unit["metadata"]["name"],
            run=unit["spec"]["run"],
            status=LearnerUnitStatus.model_validate(unit.get("status", {})),
            spec=_spec(unit),
            uid=unit["metadata"]["uid"],
            owned=controller_uid(unit) == run.uid and "deletionTimestamp" not in unit["metadata"],
            generation=unit["metadata"]["generation"],
        )
        for unit in units
    }
    return replace(run, units=facts)


def _spec(unit: Object) -> LearnerUnitSpec | None:
    """None for a spec that another version wrote and this one cannot read."""
    try:
        return LearnerUnitSpec.model_validate(unit["spec"])
    except ValidationError:
        return None

"""One term of leadership: the work queue, the pollers, and a reconciler for each kind."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from atoll_operator.api.group import Object
from atoll_operator.api.stored import dropped
from atoll_operator.api.trainingrun import RuntimeStatus, TrainingRunSpec, TrainingRunStatus
from atoll_operator.certificates.secrets import RunCertificates
from atoll_operator.cluster import Cluster
from atoll_operator.kube.apply import Applier
from atoll_operator.kube.cache import Key
from atoll_operator.kube.client import STRATEGIC
from atoll_operator.kube.errors import Conflict, NotFound, Refused, Retry
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.kube.recorder import Recorder
from atoll_operator.metrics.process import CpuTimed, Metrics
from atoll_operator.plan.conditions import VERSION_SKEW, Notice, document, find, only_figures
from atoll_operator.plan.limits import NAMESPACE_LIMIT, Claim, Limits, Room
from atoll_operator.plan.pods.template import PodSettings, pod_settings
from atoll_operator.plan.pods.view import Removal
from atoll_operator.plan.run.plan import RunPlan
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit.unit import Pace, Stop, UnitPlan
from atoll_operator.polling import EvaluatorPoller, SyncerPoller
from atoll_operator.reconcilers.body import Body
from atoll_operator.reconcilers.inventory import Inventory, parent_key
from atoll_operator.reconcilers.wakeups import FIGURES_SECONDS, SOON_SECONDS, report_wakeups
from atoll_operator.settings import Settings

REFUSED_SECONDS = 5.0
"""Time until the next pass after the API server refused an object."""
NEEDED = frozenset({"status.incarnation", "status.placement", "status.restarts"})
"""Status fields without which no unit can be healed, so the CRDs must have them."""
UNANSWERED = 8
"""Statuses of an object that are remembered until one of them is seen as stored."""
RESYNC_SHARES = 0.8, 1.0
"""An object without events is reconciled again after a random share, between these two, of the resync time."""

Then = Callable[[], None]


class Controller:
    """Made anew for each term, because another operator may have acted since the last one."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        inventory: Inventory,
        metrics: Metrics,
        reconcilers: Mapping[str, type[Reconciler]],
        knows: Callable[[str], bool],
    ) -> None:
        """`knows`: whether all that exists in a namespace is in the inventory."""
        self.settings, self.cluster, self.inventory, self.metrics = settings, cluster, inventory, metrics
        self._knows = knows
        self.queue: WorkQueue[Key] = WorkQueue(self._reconcile)
        self.syncers = SyncerPoller(settings, metrics, self._reported)
        self.evaluators = EvaluatorPoller(settings, metrics, lambda run, *_: self.queue.add(run))
        self.recorder = Recorder(cluster, "atoll-operator")
        self.applier = Applier(cluster, inventory, fixed=("Service",))
        self._reconcilers = {kind: reconciler(self) for kind, reconciler in reconcilers.items()}

    async def run(self) -> None:
        """Works until cancelled. All known objects are reconciled first."""
        for kind in self._reconcilers:
            for key in self.inventory.keys(kind):
                self.queue.add(key)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.queue.run(), name="work")
                group.create_task(self.recorder.run(), name="events")
        finally:
            await self.syncers.close()
            await self.evaluators.close()

    async def _reconcile(self, key: Key) -> None:
        # A resync, at a random time for each key: if all keys were enqueued at once, a failure would wait behind them.
        # The reconciler cancels it when the object is deleted.
        self.queue.add_after(key, self.settings.resync_seconds * random.uniform(*RESYNC_SHARES))
        if not self._knows(key.namespace):  # the dispatcher enqueues it when it is
            return
        started = time.monotonic()
        try:
            await self._reconcilers[key.kind](key)
        except Exception as error:
            if not isinstance(error, Retry):
                self.metrics.reconcile_errors.labels(key.kind, type(error).__name__).inc()
            raise
        finally:
            self.metrics.reconcile_seconds.labels(key.kind).observe(time.monotonic() - started)

    def _reported(self, run: Key, old: SyncerState, new: SyncerState) -> None:
        for wakeup in report_wakeups(run, old, new, self.inventory):
            self.queue.add(*wakeup)


@dataclass(slots=True)
class Memory:
    """What a reconciler remembers of one object until it is deleted."""

    uid: str
    figures_due: float = float("-inf")
    """Monotonic time from which a change of figures alone is written to its status again."""
    pace: Pace | None = None
    """How a unit has stepped, for the detection of hangs; by the monotonic clock."""
    certificates: RunCertificates | None = None
    unanswered: deque[tuple[Object, Then]] = field(default_factory=lambda: deque(maxlen=UNANSWERED))
    """Statuses that were sent and not answered, and what follows if one was stored."""


class Reconciler:
    """The work queue calls it with the key of an object, never twice at the same time for one key."""

    def __init__(self, controller: Controller) -> None:
        self._settings, self._metrics = controller.settings, controller.metrics
        self._syncers, self._evaluators = controller.syncers, controller.evaluators
        self._recorder, self._applier = controller.recorder, controller.applier
        self._cluster, self._inventory = controller.cluster, controller.inventory
        self._queue = controller.queue
        self._memory: dict[Key, Memory] = {}

    async def __call__(self, key: Key) -> None:
        body, now = self._inventory.live(key), time.time()
        if body is None:
            self._queue.forget(key)
            if self._memory.pop(key, None) is not None:
                self._deleted(key)
            if (held := self._inventory.body(key)) is not None:
                await self._end(key, held)
            return
        uid = body["metadata"]["uid"]
        if (memory := self._memory.get(key)) is None or memory.uid != uid:
            memory = self._memory[key] = Memory(uid)
        for status, follow in list(memory.unanswered):
            if status == body.get("status"):
                memory.unanswered.clear()
                follow()
        work = CpuTimed(self._reconcile(key, body, memory, now))
        try:
            await work
        finally:
            self._metrics.plan_seconds.labels(key.kind).observe(work.seconds)

    def _deleted(self, key: Key) -> None:
        """The object was deleted, or is being deleted."""

    async def _end(self, key: Key, body: Body) -> None:
        """The object is being deleted: a finalizer keeps it."""

    async def _reconcile(self, key: Key, body: Body, memory: Memory, now: float) -> None:
        raise NotImplementedError

    def _pod_settings(self, run: str, spec: TrainingRunSpec, held: RuntimeStatus | None) -> PodSettings:
        own = self._settings
        environment, policy = own.runtime_env, own.runtime_pull_policy
        defaults = PodSettings(run=run, image=own.runtime_image, pull_policy=policy, environment=environment)
        return pod_settings(defaults, spec, held)

    @staticmethod
    def _stop(spec: TrainingRunSpec, status: TrainingRunStatus) -> Stop:
        """Whether the units of a run have to stop."""
        if status.phase in ("Complete", "Failed"):
            return "Finished"
        waits = find(status.conditions, "Ready").reason == NAMESPACE_LIMIT
        return "Suspended" if spec.suspend or waits or status.phase == "Suspended" else ""

    def _room(self, key: Key, claim: Claim | None) -> Room:
        """The room that the limits of its namespace leave for a run or a unit."""
        limits = self._settings.limits.of(key.namespace)
        if claim is None or claim.has == claim.wants or limits == Limits():
            return Room(claim and claim.wants)
        none = Room(None, "its run has not begun")
        return self._inventory.rooms(key.namespace, limits).get(claim, none)

    async def _remove_pod(self, namespace: str, removal: Removal) -> None:
        """Deletes the pod with this uid, never another of its name, and updates the inventory at once. Without a grace
        period the object is gone afterwards. Raises ApiError if the API server refuses."""
        name, uid, answer = removal.name, removal.uid, Object()
        with suppress(NotFound, Conflict):
            if removal.finalizer:
                remove = {"$deleteFromPrimitiveList/finalizers": [removal.finalizer]}
                await self._cluster.patch_metadata("Pod", namespace, name, uid, STRATEGIC, **remove)
            answer = await self._cluster.delete("Pod", namespace, name, uid, removal.grace_seconds)
        if answer.get("kind") == "Pod" and answer["metadata"].get("deletionGracePeriodSeconds"):
            self._inventory.put("Pod", answer)
        else:
            self._inventory.delete(Key("Pod", namespace, name), uid)

    async def _write(self, key: Key, body: Object, status: Object, memory: Memory) -> None:
        """Writes a changed status, at most once per pass and only over the version that the plan saw. Postpones a write
        of progress figures alone until it is due. Raises Conflict if the object has changed meanwhile, which the watch
        reports too, and NotFound if it was deleted."""
        old = body.get("status", {})
        if status == old:
            return
        figures, now = only_figures(old, status), time.monotonic()
        if figures and now < memory.figures_due:
            self._queue.add_after(key, memory.figures_due - now)
            return
        answer = await self._cluster.write_status(body, status)
        stored = answer["status"]
        if stored != status and (lost := dict.fromkeys(dropped(status, stored, "status"))):
            text = f"the CRDs lack {', '.join(lost)}; update them to this operator's version"
            self._recorder.record(body, [Notice("Warning", VERSION_SKEW, text, text)], time.time())
            if NEEDED & lost.keys():
                raise Refused(text)
        # With jitter, because many units begin to train together.
        memory.figures_due = now + FIGURES_SECONDS[key.kind] * random.uniform(1.0, 1.2)
        self._inventory.put(key.kind, answer)
        # The watch reports nothing new after a write of our own.
        if not figures and (run := parent_key(key.kind, body)) is not None:
            self._queue.add(run, SOON_SECONDS)

    async def _conclude(
        self, key: Key, body: Body, memory: Memory, plan: RunPlan | UnitPlan, now: float, then: Then
    ) -> None:
        """Writes the status. Its Events and `then` follow, in a later pass if the answer is lost. Schedules a pass."""
        status = document(plan.status)

        def follow() -> None:
            self._recorder.record(body, plan.notices, now)
            then()

        memory.unanswered.append((status, follow))
        await self._write(key, body, status, memory)
        memory.unanswered.clear()
        follow()
        if plan.wake is not None:
            self._queue.add_after(key, plan.wake - now)


async def refusal_of(work: Awaitable[None]) -> str:
    """Why the API server refused an object; empty if it did not."""
    try:
        await work
    except Refused as error:
        return str(error)
    return ""

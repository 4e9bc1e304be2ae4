"""Which key is reconciled after which change, and how soon. docs/decisions/operator.md has the table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product
from typing import Any, NamedTuple

from atoll_operator.kube.cache import Change, Key
from atoll_operator.kube.queue import WorkQueue
from atoll_operator.plan.run import syncer_state
from atoll_operator.plan.run.syncer_state import SyncerState, unit_figures, unit_news
from atoll_operator.reconcilers.inventory import KINDS, NODE, PARENT, Inventory

SOON_SECONDS = 1.0
"""Time between two passes over a run because of its units, and over a unit while its pods start."""
PROMPT = ("deletion_time", "disruption", "exit_code", "finished_at", "incarnation")
"""Fields of a pod's view that change when it fails, or gets another incarnation."""
FIGURES_SECONDS = {"TrainingRun": 10.0, "LearnerUnit": 30.0}
"""Least time between two writes of a status only for progress figures. The syncer has fresher ones."""
CONDITIONS = "conditions"
"""Lane of the work queue for passes that only write conditions. Figures have a lane for each kind."""


class Wakeup(NamedTuple):
    """The key is reconciled `seconds` after its last pass (0: at once), or when its turn in the lane comes."""

    key: Key
    seconds: float = 0.0
    lane: str = ""


def wakeups(change: Change, inventory: Inventory) -> Iterator[Wakeup]:
    """What to reconcile after a change of the cache."""
    key, old, new = change.key, change.old, change.new
    entry: Any = new or old  # one of them is not None
    parent = entry.groups.get(PARENT)
    if key.kind == "Node":
        if old is None or new is None or old.value != new.value:
            pods = inventory.by(NODE, key.name, "Pod")
            yield from map(Wakeup, {pod.groups[PARENT] for pod in pods if PARENT in pod.groups})
    elif key.kind == "TrainingRun":
        yield Wakeup(key)
    elif key.kind == "LearnerUnit":
        yield Wakeup(key)
        if parent is not None:
            yield Wakeup(parent, SOON_SECONDS)
    elif parent is not None and (delay := _delay(change)) is not None:
        rises = delay > 0 and key.kind == "Pod" and new is not None  # only the status waits
        yield Wakeup(parent, delay, CONDITIONS if rises else "")


def _delay(change: Change) -> float | None:
    """Seconds until the parent of a pod or an owned object is reconciled. None: that is not needed."""
    old, new = change.old, change.new
    if change.key.kind != "Pod":
        return None if old is None else SOON_SECONDS
    if new is None:
        # Nothing is lost with a pod without a node, and whoever deleted it may delete the next one as fast.
        lost = old is not None and old.value.node and old.value.deletion_time is None
        return 0.0 if lost else SOON_SECONDS
    if old is None or old.uid != new.uid:
        return 0.0
    before, pod = old.value, new.value
    if before == pod:
        return None
    prompt = any(getattr(before, name) != getattr(pod, name) for name in PROMPT)
    leads = pod.node != before.node and not pod.pool  # the other pods of its slice follow it
    return 0.0 if prompt or leads or pod.ended or (before.ready and not pod.ready) else SOON_SECONDS


def report_wakeups(run: Key, old: SyncerState, new: SyncerState, inventory: Inventory) -> Iterator[Wakeup]:
    """What to reconcile after a poll of a run's syncer."""
    units = inventory.unit_keys(run)
    if syncer_state.serving(old) != syncer_state.serving(new):
        yield from map(Wakeup, (run, *units))
        return
    before, after = (state.status.units if state.status is not None else {} for state in (old, new))
    names = before.keys() | after.keys()
    news = {name for name in names if unit_news(before.get(name)) != unit_news(after.get(name))}
    for name in news:
        heals = (report := new.report_of(name)) is not None and report.suspect
        yield Wakeup(Key("LearnerUnit", run.namespace, name), lane="" if heals else CONDITIONS)
    for key in units:
        if key.name not in news and unit_figures(old, key.name) != unit_figures(new, key.name):
            yield Wakeup(key, FIGURES_SECONDS[key.kind], key.kind)
    if news or syncer_state.run_news(old) != syncer_state.run_news(new):
        yield Wakeup(run)
    elif syncer_state.run_figures(old) != syncer_state.run_figures(new):
        yield Wakeup(run, FIGURES_SECONDS[run.kind], run.kind)


class Dispatcher:
    """Enqueues the keys of `wakeups` after each change that a watch reports."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self.queue: WorkQueue[Key] | None = None
        """None while this operator does not lead."""

    def listed(self, namespaces: Collection[str]) -> None:
        """The API server answers, and all that exists in these namespaces is known from now on."""
        if self.queue is not None:
            self.queue.retry_failed()
            for namespace, kind in product(namespaces, KINDS):
                for key in self._inventory.keys(kind, namespace):
                    self.queue.add(key)

    def changed(self, change: Change) -> None:
        if self.queue is not None:
            for wakeup in wakeups(change, self._inventory):
                self.queue.add(*wakeup)

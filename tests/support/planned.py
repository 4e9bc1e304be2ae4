"""A spec carried through the plans in this process, as the operator does it, until nothing is left to be done.

Of a pool's units one with a name of each length stands for all of that length: its plan is carried out, and the others
have its status. Names differ in length by their number, and those of hosts may come out too long.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from atoll_operator.api.group import ANNOTATION_INCARNATION, LABEL_GANG, LABEL_HOST, LABEL_UNIT
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.clock import earliest
from atoll_operator.plan.pods.names import evaluator, pod_name
from atoll_operator.plan.pods.settings import pod_settings
from atoll_operator.plan.pods.topology import MAX_HOSTS, slice_of
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.run.syncer_state import UNAVAILABLE, SyncerState
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import Orders, UnitObserved
from atoll_runtime.contract import SyncerStatus, UnitReport

Object = dict[str, Any]
BEGIN = 1_800_000_000.0
PASSES = 20
"""After which what still changes is not at rest."""
WHOLE = 8
"""Hosts of a gang whose pods are made; those of the others are there without having been made."""
PLACED: Object = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


class PlannedUnit:
    """A LearnerUnit and its pods."""

    def __init__(self, body: Object, orders: Orders | None) -> None:
        metadata = body["metadata"]
        self.body = body
        self.pods: dict[str, Object] = {}
        self._views: dict[str, PodView] = {}
        self.made: dict[tuple[str, str], Object] = {}
        """The Service and the first pod as they were asked for."""
        self.seen = UnitObserved(
            name=metadata["name"],
            namespace=metadata["namespace"],
            uid=uid_of(metadata["name"]),
            generation=1,
            spec=LearnerUnitSpec.model_validate(body["spec"]),
            status=LearnerUnitStatus(),
            pods=(),
            orders=orders,
        )

    def step(self, now: float) -> tuple[bool, float | None]:
        """Whether there was anything to do, and when to look again."""
        before = self.seen.status
        plan = plan_unit(self.seen, now)
        for made in (*filter(None, [plan.service]), *plan.create[:1]):
            self.made.setdefault((made["kind"], made["metadata"]["name"]), made)
        if plan.create:  # the next pass says what has come of it
            self._put({pod["metadata"]["name"]: pod for pod in plan.create})
        else:
            self.seen = replace(self.seen, status=plan.status)
        if plan.advance:
            self._put(_others(self.seen))
        for removal in plan.remove:
            del self.pods[removal.name], self._views[removal.name]
        self._look()
        return bool(plan.create or plan.remove) or self.seen.status != before, plan.wake

    def rest(self) -> None:
        """Pass after pass, where nothing else changes.

        Raises:
            AssertionError: it does not come to rest.
        """
        for step in range(PASSES):
            if not self.step(BEGIN + step)[0]:
                return
        raise AssertionError(f"is not at rest after {PASSES} passes: {self.seen.status}")

    def answer(self, now: float) -> None:
        """The pods run that no queue holds, and the syncer says that the unit learns."""
        self.seen = replace(self.seen, report=_learning(self.seen), answering_since=now)
        self._put(
            {
                name: {**pod, "spec": {**pod["spec"], "nodeName": "node-1"}, "status": PLACED}
                for name, pod in self.pods.items()
                if not pod["spec"].get("schedulingGates")
            }
        )
        self._look()

    def _put(self, pods: dict[str, Object]) -> None:
        self.pods |= pods
        self._views |= {name: view(pod) for name, pod in pods.items()}

    def _look(self) -> None:
        self.seen = replace(self.seen, pods=tuple(self._views.values()))

    def shown(self) -> Object:
        return _with_status(self.body, self.seen.status)


class PlannedRun:
    """A TrainingRun, its objects and its units."""

    def __init__(self, stored: Object, namespace: str) -> None:
        self.body = {**stored, "metadata": {**stored["metadata"], "namespace": namespace}}
        name, spec = stored["metadata"]["name"], TrainingRunSpec.model_validate(stored["spec"])
        self.now = BEGIN
        self.deleted = False
        self.objects: dict[tuple[str, str], Object] = {}
        """Of the run itself, by kind and name."""
        self.made: dict[tuple[str, str], Object] = {}
        """The same as they were first asked for, also those that are gone."""
        self.units: dict[str, Object] = {}
        self.alike: dict[tuple[str, int], PlannedUnit] = {}
        """Those that stand for others, by the name of the pool and the length of their own, the longest last."""
        self.seen = RunObserved(
            name=name,
            namespace=namespace,
            uid=uid_of(name),
            generation=1,
            spec=spec,
            status=TrainingRunStatus(),
            settings=pod_settings(
                name, spec, None, image="runtime", environment={}, pull_policy="IfNotPresent"
            ),
            units={},
            syncer=SyncerState(reason=UNAVAILABLE, message="nobody listens"),
        )

    def rest(self, within: float) -> None:
        """Pass after pass, also those that are due within so many seconds.

        Raises:
            AssertionError: it does not come to rest.
        """
        for _ in range(PASSES):
            plan = plan_run(self.seen, self.now)
            if plan.delete_run:
                self.deleted = True
                return
            changed, wake = self._carry_out(plan), plan.wake
            for unit in self.alike.values():
                unit.seen = replace(unit.seen, orders=orders(self.seen))
                moved, due = unit.step(self.now)
                changed, wake = changed or moved, earliest(wake, due)
            self._look()
            if changed:
                continue
            if wake is None or wake > BEGIN + within:
                return
            self.now = max(wake, self.now)
        raise AssertionError(f"is not at rest after {PASSES} passes: {self.seen.status}")

    def answer(self) -> None:
        """The pods run, and the syncer says that every unit learns."""
        reports = {name: _learning(self.alike[_alike(body)].seen) for name, body in self.units.items()}
        status = SyncerStatus(run_uid=self.seen.uid, phase="Running", units=reports)
        self.seen = replace(self.seen, syncer=SyncerState(status=status, answering_since=self.now))
        for unit in self.alike.values():
            unit.answer(self.now)

    def shown(self) -> Object:
        return _with_status(self.body, self.seen.status)

    def shown_units(self) -> list[Object]:
        return [_with_status(body, self.alike[_alike(body)].seen.status) for body in self.units.values()]

    def offers(self) -> Iterable[Object]:
        """Whatever was asked for: all of the run, and of each pool the unit with the longest name and what it has."""
        yield from self.made.values()
        for unit in {pool: unit for (pool, _), unit in self.alike.items()}.values():
            yield unit.body
            yield from unit.made.values()

    def _carry_out(self, plan: RunPlan) -> bool:
        applied = {
            (body["kind"], body["metadata"]["name"]): body for body in (*plan.apply, *plan.apply_evaluator)
        }
        removed = {(reference.kind, reference.name) for reference in plan.delete} & self.objects.keys()
        changed = bool(plan.apply_units or plan.delete_units or removed or plan.replace_pods or plan.again)
        changed |= plan.status != self.seen.status or any(
            self.objects.get(key) != body for key, body in applied.items()
        )
        self.made = applied | self.made
        self.objects |= applied
        for key in removed:
            del self.objects[key]
        for body in plan.apply_units:
            self.units[body["metadata"]["name"]] = body
            if _alike(body) not in self.alike:
                self.alike[_alike(body)] = PlannedUnit(body, None)
        self.seen = replace(self.seen, status=plan.status)
        return changed

    def _look(self) -> None:
        known = {name: facts.spec for name, facts in self.seen.units.items()}
        units = {
            name: UnitFacts(
                name=name,
                run=self.seen.name,
                status=self.alike[_alike(body)].seen.status,
                spec=known.get(name) or LearnerUnitSpec.model_validate(body["spec"]),
                uid=uid_of(name),
                generation=1,
            )
            for name, body in self.units.items()
        }
        there = ("StatefulSet", evaluator(self.seen.name)) in self.objects
        self.seen = replace(self.seen, units=units, evaluator_exists=there)


def orders(run: RunObserved) -> Orders:
    """What a run at this point wants of its units."""
    over = run.status.phase in ("Complete", "Failed")
    return Orders(
        stop="Finished" if over else "Suspended" if run.spec.suspend else "",
        finishing=False,
        recovery=run.spec.recovery,
        begun=run.status.global_step > 0,
        settings=run.settings,
    )


@lru_cache(maxsize=4096)
def uid_of(name: str) -> str:
    """One as the API server gives: labels are made of it."""
    return str(uuid5(NAMESPACE_OID, name))


def _alike(unit: Object) -> tuple[str, int]:
    return unit["spec"]["pool"], len(unit["metadata"]["name"])


def _learning(unit: UnitObserved) -> UnitReport:
    return UnitReport(incarnation=unit.status.incarnation, hosts=MAX_HOSTS, state="Learning", seeded_step=0)


def _others(unit: UnitObserved) -> dict[str, Object]:
    """Pods of a large gang but for the first hosts."""
    hosts = (
        unit.spec.slices * slice_of(unit.spec.accelerator, unit.spec.topology, unit.spec.machine_type).hosts
    )
    number = unit.status.gang
    names = {host: pod_name(unit.name, number, host) for host in range(WHOLE, hosts)}
    return {
        name: {
            "metadata": {
                "name": name,
                "labels": {LABEL_UNIT: unit.name, LABEL_GANG: str(number), LABEL_HOST: str(host)},
                "annotations": {ANNOTATION_INCARNATION: str(unit.status.incarnation)},
            },
            "spec": {},
        }
        for host, name in names.items()
    }


def _with_status(body: Object, status: TrainingRunStatus | LearnerUnitStatus) -> Object:
    """As the API server would show it."""
    shown = status.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {**body, "metadata": {**body["metadata"], "generation": 1}, "status": shown}

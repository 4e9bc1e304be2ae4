"""One run as the operator sees it. Tests change the scene and read the plan, its status and its objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from objects import RUN

from atoll_operator.api.group import ANNOTATION_CONTRACT
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.conditions import find, format_time, state, transition
from atoll_operator.plan.pods.template import PodSettings, pod_settings
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.run.observed import RunObserved, UnitFacts
from atoll_operator.plan.run.plan import RunPlan, plan_run
from atoll_operator.plan.run.syncer_state import CheckpointOrder, SyncerState
from atoll_runtime.contract import SyncerStatus

NOW = 1_700_000_000.0
Pools = dict[str, int] | list[dict[str, Any]] | None
IMAGE = {"image": "runtime:1", "environment": {}, "pull_policy": "IfNotPresent"}


def pod(name: str, contract: str = "", going: bool = False, ready: bool = False, **container: Any) -> PodView:
    """What the operator sees of a pod with a container in this state, such as `running` or `waiting`.

    Args:
        container: the state; also `exit_code` and `message` of its last end, and `unschedulable`, why it has no node.
    """
    metadata = {"name": name, "uid": f"{name}-{contract}", "annotations": {ANNOTATION_CONTRACT: contract}}
    metadata |= {"deletionTimestamp": format_time(NOW)} if going else {}
    conditions = [{"type": "Ready", "status": f"{ready}"}]
    if why := container.pop("unschedulable", ""):
        told = {"reason": "Unschedulable", "message": why, "lastTransitionTime": format_time(NOW)}
        conditions.append({"type": "PodScheduled", "status": "False", **told})
    ended = {"exitCode": container.pop("exit_code", None), "message": container.pop("message", "")}
    last = {"lastState": {"terminated": ended}} if ended["exitCode"] is not None else {}
    main = {"name": "main", "state": container, **last}
    return view({"metadata": metadata, "status": {"conditions": conditions, "containerStatuses": [main]}})


def unit_status(learning: bool | None = True, **changes: Any) -> LearnerUnitStatus:
    """Status of a unit in its first incarnation. `learning`: the condition `Learning`; None leaves it out."""
    states = {} if learning is None else {"Learning": state(learning, "Merged")}
    values: dict[str, Any] = {"phase": "Learning" if learning else "Joining", "incarnation": 1}
    values |= {"observed_generation": 1, "conditions": transition((), states, 1, NOW)}
    return LearnerUnitStatus(**(values | changes))


class RunScene:
    """A run called `r`, by default of two units, with a syncer that answers. Everything can be set between passes.

    Args:
        pools: number of units of each pool, all of the same kind of slice; or full pools as in a spec.
        operator: the operator's defaults for runtime pods.
        spec: fields of the spec.
    """

    def __init__(self, pools: Pools = None, operator: dict[str, Any] = IMAGE, **spec: Any) -> None:
        self.operator = operator
        self.body: dict[str, Any] = dict(RUN["spec"])
        self.status = TrainingRunStatus()
        self.units: dict[str, UnitFacts] = {}
        self.generation = 1
        self.observed: dict[str, Any] = {"syncer_pods": (pod("r-syncer-0"),)}
        """Further fields of `RunObserved`."""
        self.change(pools, **spec)
        self.syncer()

    def change(self, pools: Pools = None, **spec: Any) -> RunScene:
        if isinstance(pools, dict):
            kind = {"accelerator": "tpu-v6e-slice", "topology": "2x2"}
            pools = [{"name": name, "units": units, **kind} for name, units in pools.items()]
        self.body = {**self.body, **({} if pools is None else {"pools": pools}), **spec}
        self.spec = TrainingRunSpec.model_validate(self.body)
        return self

    def see(self, **observed: Any) -> RunScene:
        """Set fields of `RunObserved`, such as `syncer_pods`, `cut` or `evaluator`."""
        self.observed |= observed
        return self

    def syncer(self, phase: Any = "Running", down: str = "", since: float = NOW, **report: Any) -> RunScene:
        status = SyncerStatus(**({"run_uid": "u", "phase": phase, "global_step": 25, "down": down} | report))
        return self.see(syncer=SyncerState().heard(status, since))

    def ordered(self, refused: str = "") -> RunScene:
        """The syncer's last answer was to the order of the checkpoint before a suspension."""
        state: SyncerState = self.observed["syncer"]
        step = state.status.global_step if state.status is not None else 0
        order = CheckpointOrder(step, last=True, refused=refused)
        return self.see(syncer=replace(state, order=order))

    def silent(self, reason: str = "SyncerUnavailable", message: str = "no route") -> RunScene:
        """The syncer does not answer; its last report stays known."""
        state: SyncerState = self.observed["syncer"]
        return self.see(syncer=state.missed(reason, message).missed(reason, message))

    def unknown(self) -> RunScene:
        """The operator has not asked the syncer yet, and none of its pods was ever asked."""
        return self.see(syncer=SyncerState())

    def unit(self, name: str, status: LearnerUnitStatus | None = None, **facts: Any) -> RunScene:
        """Set a unit's status and other fields of `UnitFacts`. Add the unit if it is missing."""
        new = UnitFacts(name=name, run="r", status=unit_status(), uid=name, generation=1)
        known = self.units.get(name, new)
        self.units[name] = replace(known, **({} if status is None else {"status": status}), **facts)
        return self

    def only(self, *names: str) -> RunScene:
        self.units = {name: self.units[name] for name in names}
        return self

    def run(self, **changes: Any) -> RunObserved:
        own = PodSettings(run="r", **self.operator)
        values: dict[str, Any] = {
            "name": "r", "namespace": "ns", "uid": "u", "generation": self.generation, "spec": self.spec,
            "status": self.status, "settings": pod_settings(own, self.spec, self.status.runtime),
            "units": dict(self.units),
        }  # fmt: skip
        return RunObserved(**(values | self.observed | changes))

    def plan(self, after: float = 0.0) -> RunPlan:
        """The plan `after` seconds after `NOW`. Nothing is carried out."""
        return plan_run(self.run(), NOW + after)

    def step(self, after: float = 0.0) -> RunPlan:
        """Plan and carry out: units are added, changed and removed, and the status is written. New and changed units
        learn."""
        plan = self.plan(after)
        for reference in plan.delete_units:
            del self.units[reference.name]
        for body in plan.apply_units:
            name, spec = body["metadata"]["name"], LearnerUnitSpec.model_validate(body["spec"])
            known = self.units.get(name)
            generation = 1 if known is None else known.generation + 1
            status = unit_status() if known is None else known.status
            status = status.model_copy(update={"observed_generation": generation})
            self.unit(name, status, spec=spec, generation=generation)
        self.status = plan.status
        return plan

    def condition(self, name: str, after: float = 0.0) -> tuple[str, str, str]:
        return condition(self.plan(after).status, name)


def condition(status: TrainingRunStatus, name: str) -> tuple[str, str, str]:
    """Status, reason and message."""
    found = find(status.conditions, name)
    return found.status, found.reason, found.message


def specs(plan: RunPlan) -> dict[str, dict[str, Any]]:
    return {body["metadata"]["name"]: body["spec"] for body in plan.apply_units}


def replicas(plan: RunPlan, name: str = "r-syncer") -> int | None:
    bodies = (*plan.apply, *plan.apply_evaluator)
    sets = {body["metadata"]["name"]: body["spec"] for body in bodies if body["kind"] == "StatefulSet"}
    return int(sets[name]["replicas"]) if name in sets else None

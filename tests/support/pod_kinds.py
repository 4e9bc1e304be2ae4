"""The pods of a run as the plans make them, one of each kind."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from objects import TWO_HOSTS
from run_scene import NOW, RunScene

from atoll_operator.api.group import EVALUATOR, LEARNER, SYNCER, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.api.sections import EvaluatorSpec, SyncerSpec
from atoll_operator.plan.pods import gang
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.run.workloads import evaluator_objects, syncer_objects
from atoll_operator.plan.unit.unit import UnitObserved


def settings(template: Object | None = None, **environment: str) -> PodSettings:
    """Settings with the run's `podTemplate` and the operator's variables."""
    own = PodTemplate.model_validate(template or {})
    return PodSettings(
        run="r", image="runtime", pull_policy="IfNotPresent", environment=environment, template=own
    )


def learner_unit(which: PodSettings | None = None, number: int = 3, **changes: Any) -> UnitObserved:
    """A unit of two hosts without pods, or one with other fields of its own or of its spec."""
    own = {name: changes.pop(name) for name in ("namespace", "name", "uid") if name in changes}
    kind = {"machine_type": None} if "topology" in changes else {}
    values: dict[str, Any] = {
        "now": NOW, "name": "r-two-0", "namespace": "ns", "uid": "r-two-0-uid", "generation": 1, "pods": (),
        "spec": LearnerUnitSpec.model_validate(TWO_HOSTS.model_dump() | kind | changes), "sees_nodes": True,
        "status": LearnerUnitStatus(placement=number, incarnation=number), "settings": which or settings(),
    }  # fmt: skip
    return UnitObserved(**(values | own))


def all_pods(unit: UnitObserved) -> tuple[Object, ...]:
    return tuple(make() for make in gang.pods(unit, dict.fromkeys(range(unit.hosts), gang.PodPlacement())))


def workloads(which: PodSettings | None = None, **fields: Any) -> dict[str, Object]:
    """The StatefulSets. `fields` are set in both sections of the spec."""
    run = RunScene().run(settings=which or settings())
    update = {"syncer": SyncerSpec(**fields), "evaluation": EvaluatorSpec(**fields)}
    run = replace(run, spec=run.spec.model_copy(update=update))
    return {SYNCER: syncer_objects(run, 1)[1], EVALUATOR: evaluator_objects(run, 1)[1]}


def kinds(which: PodSettings | None = None, **changes: Any) -> dict[str, Object]:
    """A pod of each component."""
    made = {name: body["spec"]["template"] for name, body in workloads(which).items()}
    return {LEARNER: all_pods(learner_unit(which, **changes))[0], **made}


def container(pod: Object) -> Object:
    """The pod's only container."""
    [main] = pod["spec"]["containers"]
    return dict(main)


def variables(pod: Object) -> dict[str, Object]:
    found = container(pod)["env"]
    names = [item["name"] for item in found]
    assert len(names) == len(set(names)), "a name stands once"
    return {item["name"]: item for item in found}


def values(pod: Object) -> dict[str, str]:
    """Values of the variables that have one."""
    return {name: item["value"] for name, item in variables(pod).items() if "value" in item}

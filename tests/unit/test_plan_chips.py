"""What learners are told of their chips, and what they may do for them."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_operator.api.group import TPU, Object
from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.api.sections import EvaluatorSpec, SyncerSpec
from atoll_operator.plan.pods import evaluator, syncer
from atoll_operator.plan.pods.affinity import PodPlacement
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.template import PodSettings
from atoll_operator.plan.pods.topology import GENERATIONS
from atoll_runtime.contract import ENV_LOCK_MEMORY, ENV_UNIT, parse_unit

KINDS = [
    pytest.param(generation.accelerator, machine.name, machine.topologies[0], id=machine.name)
    for generation in GENERATIONS
    for machine in generation.machines
]


def settings(template: Object | None = None, **environment: str) -> PodSettings:
    return PodSettings(
        run="r",
        image="i",
        pull_policy="Always",
        environment=environment,
        template=PodTemplate.model_validate(template or {}),
    )


def learner(which: PodSettings, accelerator: str, machine: str, topology: str) -> Any:
    """The container of its first host."""
    spec = LearnerUnitSpec(
        run="r",
        pool="p",
        accelerator=accelerator,
        topology=topology,
        machine_type=machine,
        batch=8,
        stream=0,
        streams=1,
    )
    (pod,) = Gang(
        namespace="n", unit="u", uid="u", placement=1, incarnation=1, spec=spec, settings=which
    ).pods({0: PodPlacement()})
    return pod["spec"]["containers"][0]


def value(container: Any, name: str) -> str:
    return next(str(item["value"]) for item in container["env"] if item["name"] == name)


V6E = ("tpu-v6e-slice", "ct6e-standard-4t", "2x2")


@pytest.mark.parametrize(("accelerator", "machine", "topology"), KINDS)
def test_a_learner_is_told_of_as_many_chips_as_its_container_is_given(accelerator, machine, topology) -> None:
    container = learner(settings(), accelerator, machine, topology)
    told = parse_unit(value(container, ENV_UNIT))
    assert str(told.chips) == container["resources"]["limits"][TPU]


def test_a_syncer_and_an_evaluator_look_for_no_chips_in_an_image_that_has_libtpu() -> None:
    which = settings()
    for pods in (
        syncer.objects(which, "n", [], SyncerSpec(), 1, 0, "c")[1],
        evaluator.objects(which, "n", [], EvaluatorSpec(), 1)[1],
    ):
        assert value(pods["spec"]["template"]["spec"]["containers"][0], "JAX_PLATFORMS") == "cpu"


def test_a_learner_may_lock_memory_only_where_the_administrator_said_so() -> None:
    plain = learner(settings(), *V6E)["securityContext"]
    by_user = settings({"env": [{"name": ENV_LOCK_MEMORY, "value": "true"}]})
    assert learner(by_user, *V6E)["securityContext"] == plain
    assert plain["capabilities"] == {"drop": ["ALL"]} and "runAsUser" not in plain
    raised = learner(settings(**{ENV_LOCK_MEMORY: "true"}), *V6E)["securityContext"]
    assert raised["capabilities"] == {"drop": ["ALL"], "add": ["SYS_RESOURCE"]}
    assert (raised["runAsUser"], raised["runAsNonRoot"]) == (0, False), "only root keeps a capability"
    assert (raised["allowPrivilegeEscalation"], raised["readOnlyRootFilesystem"]) == (False, True)


def test_what_learners_may_do_no_other_pod_of_the_run_may() -> None:
    which = settings(**{ENV_LOCK_MEMORY: "true"})
    for pods in (
        syncer.objects(which, "n", [], SyncerSpec(), 1, 0, "c")[1],
        evaluator.objects(which, "n", [], EvaluatorSpec(), 1)[1],
    ):
        container = pods["spec"]["template"]["spec"]["containers"][0]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "runAsUser" not in container["securityContext"]

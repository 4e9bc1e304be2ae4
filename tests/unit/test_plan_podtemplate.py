"""What a run adds to its pods: it is in all of them, and never in the place of what the operator gives them."""

from __future__ import annotations

from typing import Any

import pytest
from objects import TWO_HOSTS

from atoll_operator.api.group import Object
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.api.sections import EvaluatorSpec, SyncerSpec
from atoll_operator.plan.pods import evaluator, syncer
from atoll_operator.plan.pods.affinity import PodPlacement
from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.template import PodSettings

TEMPLATE: Object = {
    "labels": {"team": "llm"},
    "annotations": {"example.com/owner": "you"},
    "env": [
        {"name": "XLA_FLAGS", "value": "--of-the-run"},
        {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}},
    ],
    "imagePullSecrets": [{"name": "pull"}],
    "priorityClassName": "training",
    "volumes": [
        {"name": "corpus", "persistentVolumeClaim": {"claimName": "corpus", "readOnly": True}},
        {"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
    ],
    "volumeMounts": [
        {"name": "corpus", "mountPath": "/mnt/corpus", "subPath": "v1", "readOnly": True},
        {"name": "scratch", "mountPath": "/dev/shm", "readOnly": False},
    ],
}


def settings(template: Object, **environment: str) -> PodSettings:
    return PodSettings(
        run="r",
        image="runtime",
        pull_policy="IfNotPresent",
        environment=environment,
        template=PodTemplate.model_validate(template),
    )


def pods(which: PodSettings, spec: Any = TWO_HOSTS) -> dict[str, Object]:
    """A pod of each kind."""
    gang = Gang(
        namespace="ns", unit="r-two-0", uid="3fa9c0de", placement=3, incarnation=3, spec=spec, settings=which
    )
    (learner,) = gang.pods({0: PodPlacement()})
    return {
        "learner": learner,
        "syncer": syncer.objects(which, "ns", [], SyncerSpec(), 1, 0, "c")[1]["spec"]["template"],
        "evaluator": evaluator.objects(which, "ns", [], EvaluatorSpec(), 1)[1]["spec"]["template"],
    }


def variables(pod: Object) -> dict[str, Object]:
    found = pod["spec"]["containers"][0]["env"]
    names = [item["name"] for item in found]
    assert len(names) == len(set(names)), "a name stands once"
    return {item["name"]: item for item in found}


def mounts(pod: Object) -> list[Object]:
    return list(pod["spec"]["containers"][0]["volumeMounts"])


@pytest.mark.parametrize("kind", ["learner", "syncer", "evaluator"])
def test_every_pod_of_the_run_has_what_its_template_says(kind: str) -> None:
    plain, pod = pods(settings({}))[kind], pods(settings(TEMPLATE))[kind]
    assert pod["metadata"]["labels"] == plain["metadata"]["labels"] | TEMPLATE["labels"]
    assert pod["metadata"]["annotations"].items() >= TEMPLATE["annotations"].items()
    assert variables(pod) == variables(plain) | {item["name"]: item for item in TEMPLATE["env"]}
    assert pod["spec"]["imagePullSecrets"] == TEMPLATE["imagePullSecrets"]
    assert pod["spec"]["priorityClassName"] == "training"
    assert not {"imagePullSecrets", "priorityClassName"} & plain["spec"].keys()
    for volume in (*plain["spec"]["volumes"], *TEMPLATE["volumes"]):
        assert volume in pod["spec"]["volumes"]
    for mount in (*mounts(plain), *TEMPLATE["volumeMounts"]):
        assert mount in mounts(pod)
    assert len(mounts(pod)) == len(mounts(plain)) + 2


def test_a_variable_of_the_run_beats_that_of_the_installation_and_gives_way_to_that_of_the_pod() -> None:
    template = {"env": [{"name": name, "value": "run"} for name in ("HOME", "XLA_FLAGS", "JAX_PLATFORMS")]}
    found = pods(settings(template, XLA_FLAGS="chart", OTHER="chart"))
    values = {
        kind: {name: item.get("value") for name, item in variables(pod).items()}
        for kind, pod in found.items()
    }
    for kind in values:
        assert (values[kind]["XLA_FLAGS"], values[kind]["OTHER"]) == ("run", "chart")
        assert values[kind]["HOME"] == "/tmp"
    assert values["evaluator"]["JAX_PLATFORMS"] == "cpu", "it has no accelerator"
    assert values["learner"]["JAX_PLATFORMS"] == "run"


def test_flags_of_libtpu_come_after_those_that_slices_need() -> None:
    several = TWO_HOSTS.model_copy(update={"slices": 2})
    template = {"env": [{"name": "LIBTPU_INIT_ARGS", "value": "--mine"}]}
    value = variables(pods(settings(template, LIBTPU_INIT_ARGS="--chart"), several)["learner"])[
        "LIBTPU_INIT_ARGS"
    ]
    assert value["value"].startswith("--megascale") and value["value"].endswith(" --mine")


def test_labels_that_pods_are_found_by_cannot_be_taken_away() -> None:
    for pod in pods(settings({"labels": {"atoll.dev/run": "other", "atoll.dev/unit": "x"}})).values():
        assert pod["metadata"]["labels"]["atoll.dev/run"] == "r"

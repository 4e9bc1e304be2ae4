"""What pods are given: additions of the run, never in the place of what the operator gives; volumes, chips, rights."""

from __future__ import annotations

import copy
from pathlib import PurePosixPath
from typing import Any

import pytest
from objects import RUN
from pod_kinds import all_pods, container, kinds, learner_unit, settings, values, variables, workloads
from run_scene import RunScene

from atoll_cli.simulate.admission import faults
from atoll_operator.api.group import TPU, Object
from atoll_operator.api.podtemplate import PodTemplate
from atoll_operator.kube.cache import Key
from atoll_operator.plan.pods.topology import GENERATIONS
from atoll_operator.reconcilers.body import Body
from atoll_operator.reconcilers.inventory import Inventory
from atoll_runtime.contract import ENV_LOCK_MEMORY, ENV_UNIT, TERMINATION_LOG, parse_unit

TOKEN = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}
TEMPLATE: Object = {
    "labels": {"team": "llm"},
    "annotations": {"example.com/owner": "you"},
    "env": [{"name": "XLA_FLAGS", "value": "--of-the-run"}, TOKEN],
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
MOUNTS = TEMPLATE["volumeMounts"]


def mounts(pod: Object) -> list[Object]:
    return list(pod["spec"]["containers"][0]["volumeMounts"])


def stored(name: str, template: Object, inventory: Inventory, **more: Any) -> Body:
    """A unit with this template, and with `more` in its spec, as the inventory holds it."""
    metadata = {"name": name, "namespace": "ns", "uid": name, "resourceVersion": "1", "generation": 1}
    spec = learner_unit().spec.model_dump(mode="json", by_alias=True, exclude_none=True) | more
    spec["podTemplate"] = copy.deepcopy(template)
    inventory.put("LearnerUnit", {"metadata": metadata, "spec": spec})
    body = inventory.body(Key("LearnerUnit", "ns", name))
    assert body is not None
    return body


def test_units_with_equal_templates_have_it_in_memory_once() -> None:
    inventory = Inventory()
    whole = PodTemplate.model_validate(TEMPLATE).model_dump(mode="json", by_alias=True)
    newer = {**TEMPLATE, "hostAliases": ["x"], "volumeMounts": [mount | {"new": 1} for mount in MOUNTS]}
    templates = {"a": TEMPLATE, "b": dict(reversed(TEMPLATE.items())), "c": whole, "d": newer, "e": newer}
    bodies = [stored(name, template, inventory) for name, template in templates.items()]
    read = [body.unit.spec.pod_template for body in bodies]
    assert all(each is read[0] for each in read), "also where one leaves out what is the default"
    assert read[0] == PodTemplate.model_validate(TEMPLATE)
    unknown: dict[str, Any] = {f"spec.podTemplate.volumeMounts.{number}.new": 1 for number in (0, 1)}
    unknown["spec.podTemplate.hostAliases"] = ["x"]
    skewed = stored("f", newer, inventory, spare=1)
    assert skewed.unit.spec.pod_template is read[0], "also beside another field that is not known"
    assert skewed.unknown == unknown | {"spec.spare": 1}
    assert bodies[-1].unknown == unknown
    unread = [stored(name, {"volumes": [{}]}, inventory)["spec"]["podTemplate"] for name in "gh"]
    assert unread[0] is unread[1] == {"volumes": [{}]}


@pytest.mark.parametrize("kind", ["learner", "syncer", "evaluator"])
def test_every_pod_of_the_run_has_what_its_template_says(kind: str) -> None:
    plain, pod = kinds(settings({}))[kind], kinds(settings(TEMPLATE))[kind]
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
    found = kinds(settings(template, XLA_FLAGS="chart", OTHER="chart"))
    told = {kind: values(pod) for kind, pod in found.items()}
    for each in told.values():
        assert (each["XLA_FLAGS"], each["OTHER"], each["HOME"]) == ("run", "chart", "/tmp")
    platforms = {kind: each["JAX_PLATFORMS"] for kind, each in told.items()}
    assert platforms == {"learner": "run", "syncer": "cpu", "evaluator": "cpu"}, "these have no accelerator"


def test_a_learner_is_told_of_as_many_chips_as_its_container_is_given() -> None:
    machines = [(each.accelerator, machine) for each in GENERATIONS for machine in each.machines]
    for accelerator, machine in machines:
        kind = {"accelerator": accelerator, "machine_type": machine.name, "topology": machine.topologies[0]}
        pod = all_pods(learner_unit(**kind))[0]
        told = parse_unit(values(pod)[ENV_UNIT])
        assert str(told.chips) == container(pod)["resources"]["limits"][TPU], machine.name


def rights(pod: Object) -> Object:
    return dict(container(pod)["securityContext"])


def test_a_learner_alone_may_lock_memory_and_only_where_the_administrator_said_so() -> None:
    plain = rights(kinds()["learner"])
    by_user = settings({"env": [{"name": ENV_LOCK_MEMORY, "value": "true"}]})
    by_administrator = kinds(settings(**{ENV_LOCK_MEMORY: "true"}))
    for pod in (kinds(by_user)["learner"], by_administrator["syncer"], by_administrator["evaluator"]):
        assert rights(pod) == plain
    assert plain["capabilities"] == {"drop": ["ALL"]} and "runAsUser" not in plain
    raised = rights(by_administrator["learner"])
    assert raised["capabilities"] == {"drop": ["ALL"], "add": ["SYS_RESOURCE"]}
    assert (raised["runAsUser"], raised["runAsNonRoot"]) == (0, False), "only root keeps a capability"
    assert (raised["allowPrivilegeEscalation"], raised["readOnlyRootFilesystem"]) == (False, True)


LOST = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
THEIRS = {"key": "dedicated", "operator": "Exists"}


@pytest.mark.parametrize("kind", ["syncer", "evaluator"])
def test_pods_leave_a_lost_node_after_half_a_minute_in_place_of_five(kind: str) -> None:
    *ours, last = workloads(tolerations=(THEIRS,))[kind]["spec"]["template"]["spec"]["tolerations"]
    assert {item["key"]: item["tolerationSeconds"] for item in ours} == dict.fromkeys(LOST, 30)
    assert ({item["effect"] for item in ours}, last) == ({"NoExecute"}, THEIRS)


# Volumes that a run adds: judged by the rules of its definition, against the pods that the plans make

SYNCER_SET = workloads()["syncer"]["spec"]
PODS = [pod["spec"] for pod in kinds().values()]
"""One of each kind, with what the operator itself gives them."""
NAMES = {volume["name"] for pod in PODS for volume in pod["volumes"]}
NAMES |= {claim["metadata"]["name"] for claim in SYNCER_SET["volumeClaimTemplates"]}
TAKEN = {PurePosixPath(mount["mountPath"]) for pod in PODS for mount in pod["containers"][0]["volumeMounts"]}
TAKEN |= {PurePosixPath(path) for path in (TERMINATION_LOG, "/proc", "/sys")}


def refusals(template: dict[str, Any]) -> list[str]:
    return faults({**RUN, "spec": {**RUN["spec"], "podTemplate": template}})


def mounted(path: str) -> dict[str, Any]:
    volume, mount = {"name": "v", "emptyDir": {}}, {"name": "v", "mountPath": path}
    return {"volumes": [volume], "volumeMounts": [mount]}


def test_names_and_paths_of_the_operators_own_volumes_are_refused() -> None:
    for name in NAMES:
        (line,) = refusals({"volumes": [{"name": name, "emptyDir": {}}]})
        place = f"spec.podTemplate.volumes[0].name: {name!r}"
        assert line.startswith(f"{place}: must not be a volume of the operator")
    for path in TAKEN:
        assert all(refusals(mounted(where)) for where in (str(path), f"{path}/below", str(path.parent))), path


def test_unit_is_outdated_while_it_has_another_claim_than_its_run() -> None:
    def template(claim: str) -> dict[str, Any]:
        return {"volumes": [{"name": "corpus", "persistentVolumeClaim": {"claimName": claim}}]}

    scene = RunScene({"a": 2}, podTemplate=template("old"))
    scene.step()
    assert scene.plan().status.units_updated == 2
    assert scene.change(podTemplate=template("new")).plan().status.units_updated == 0

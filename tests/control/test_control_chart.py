"""The chart by the real helm: what it renders, what it refuses, and that the kustomize base is the same."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_local.programs import find

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build helm and kubectl
]
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "atoll"
KEEP = "helm.sh/resource-policy"
MANAGED_BY = "app.kubernetes.io/managed-by"
Objects = dict[tuple[str, str, str], Any]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_name(text: str) -> Objects:
    """Documents by kind, namespace and name."""
    found: Objects = {}
    for item in yaml.safe_load_all(text):
        if item:
            meta = item["metadata"]
            found[item["kind"], meta.get("namespace", ""), meta["name"]] = item
    return found


def template(*options: str) -> Objects:
    return by_name(run(find("helm"), "template", "atoll", CHART, "--namespace", "atoll-system", *options))


def environment(objects: Objects) -> dict[str, str]:
    pod = objects["Deployment", "atoll-system", "atoll-operator"]["spec"]["template"]["spec"]
    return {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"] if "value" in entry}


def test_helm_lint_finds_nothing() -> None:
    run(find("helm"), "lint", "--strict", CHART)


def test_the_kustomize_base_and_the_chart_are_the_same() -> None:
    chart = template()
    base = by_name(run(find("kubectl"), "kustomize", ROOT / "manifests"))
    for item in [*chart.values(), *base.values()]:
        item["metadata"].get("labels", {}).pop(MANAGED_BY, None)
        item["metadata"].get("annotations", {}).pop(KEEP, None)
        if not item["metadata"].get("annotations", True):
            del item["metadata"]["annotations"]
    del base["Namespace", "", "atoll-system"]
    assert base == chart


def test_the_definitions_are_the_generated_ones_and_stay_when_the_release_goes() -> None:
    generated = {path.name: path.read_bytes() for path in (ROOT / "crds").glob("atoll.dev_*.yaml")}
    copies = {path.name: path.read_bytes() for path in (CHART / "files" / "crds").glob("*.yaml")}
    assert generated == copies
    assert len(generated) == 2
    chart = template()
    for text in generated.values():
        definition = yaml.safe_load(text)
        rendered = chart["CustomResourceDefinition", "", definition["metadata"]["name"]]
        assert rendered["metadata"].pop("annotations")[KEEP] == "keep"
        definition["metadata"].pop("annotations", None)
        assert rendered == definition


def test_definitions_can_be_left_to_others() -> None:
    assert not [kind for kind, _, _ in template("--set=crds.enabled=false") if kind.startswith("Custom")]


def test_values_become_the_settings_of_the_operator() -> None:
    runtime = {"image": {"repository": "r/runtime", "tag": "2"}, "env": {"A": 'x,"y"=1', "B": ""}}
    objects = template(
        f"--set-json=runtime={json.dumps(runtime)}",
        '--set-json=namespaces=["one","two"]',
        "--set=logFormat=text,resyncSeconds=60,feedSeconds=1",
    )
    found = environment(objects)
    assert json.loads(found["ATOLL_RUNTIME_ENV"]) == {"A": 'x,"y"=1', "B": ""}
    assert found["ATOLL_RUNTIME_IMAGE"] == "r/runtime:2"
    assert found["ATOLL_NAMESPACES"] == "one,two"
    assert (found["ATOLL_LOG_FORMAT"], found["ATOLL_RESYNC_SECONDS"], found["ATOLL_FEED_SECONDS"]) == (
        "text",
        "60",
        "1",
    )


def test_a_list_of_namespaces_takes_the_place_of_cluster_wide_rights() -> None:
    cluster_wide = template()
    rules = cluster_wide["ClusterRole", "", "atoll-operator"]["rules"]
    objects = template('--set-json=namespaces=["one","two"]')
    assert not [kind for kind, _, _ in objects if kind.startswith("ClusterRole")]
    for namespace in ("one", "two"):
        assert objects["Role", namespace, "atoll-operator"]["rules"] == rules
        binding = objects["RoleBinding", namespace, "atoll-operator"]
        assert binding["subjects"][0]["namespace"] == "atoll-system"


def test_who_may_edit_or_view_a_namespace_may_do_so_with_runs() -> None:
    objects = template()
    roles = {name: objects["ClusterRole", "", f"atoll-{name}"] for name in ("edit", "view")}
    for name, role in roles.items():
        assert role["metadata"]["labels"][f"rbac.authorization.k8s.io/aggregate-to-{name}"] == "true"
        (rule,) = role["rules"]
        assert rule["apiGroups"] == ["atoll.dev"]
        assert {"trainingruns", "learnerunits", "trainingruns/scale"} <= set(rule["resources"])
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in roles["edit"]["metadata"]["labels"]
    assert set(roles["view"]["rules"][0]["verbs"]) == {"get", "list", "watch"}
    assert not {"get", "list", "watch"} & set(roles["edit"]["rules"][0]["verbs"])


def test_several_operators_are_kept_apart_and_not_all_evicted_at_once() -> None:
    budget = ("PodDisruptionBudget", "atoll-system", "atoll-operator")
    assert budget not in template()
    objects = template("--set=replicas=2,leaseSeconds=20")
    spec = objects["Deployment", "atoll-system", "atoll-operator"]["spec"]
    assert spec["replicas"] == 2
    assert environment(objects)["ATOLL_LEASE_SECONDS"] == "20"
    labels = spec["template"]["metadata"]["labels"].items()
    assert objects[budget]["spec"]["selector"]["matchLabels"].items() <= labels
    rule = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    (preferred,) = rule["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels


@pytest.mark.parametrize(
    ("options", "granted"),
    [
        ((), True),
        (("--set=watchNodes=never",), False),
        (('--set-json=namespaces=["one"]',), False),
        (('--set-json=namespaces=["one"]', "--set=watchNodes=always"), True),
    ],
)
def test_nodes_may_be_read_where_the_whole_cluster_may_or_when_asked_for(options, granted) -> None:
    objects = template(*options)
    role = objects.get(("ClusterRole", "", "atoll-operator-nodes"), {"rules": []})
    verbs = {verb for rule in role["rules"] if rule["resources"] == ["nodes"] for verb in rule["verbs"]}
    assert verbs == ({"get", "list", "watch"} if granted else set())
    assert (("ClusterRoleBinding", "", "atoll-operator-nodes") in objects) is granted


def test_a_service_monitor_comes_when_asked_for() -> None:
    key = ("ServiceMonitor", "atoll-system", "atoll-operator")
    assert key not in template()
    monitor = template("--set=serviceMonitor.enabled=true", "--set=serviceMonitor.labels.release=prom")[key]
    assert monitor["metadata"]["labels"]["release"] == "prom"


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--set=logFormat=xml", "logFormat"),
        ("--set=resyncSeconds=1", "resyncSeconds"),
        ("--set=replicas=9", "replicas"),
        ("--set=leaseSeconds=1", "leaseSeconds"),
        ("--set=imag.tag=1", "imag"),
        ("--set=runtime.env.A=1", "runtime/env/A"),
        ('--set-json=namespaces=["Not_A_Name"]', "namespaces"),
        ("--set=watchNodes=sometimes", "watchNodes"),
        ("--set=image.repository=", "image/repository"),
    ],
)
def test_wrong_values_are_refused_by_name(option: str, field: str) -> None:
    command = [str(find("helm")), "template", "atoll", str(CHART), option]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert field in done.stderr, done.stderr

"""The chart by the real helm: what it renders, what it refuses, and that the kustomize base is the same."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_local.programs import find
from atoll_operator.api.group import LABEL_RUN
from atoll_operator.api.sections import EvaluatorSpec, SyncerSpec
from atoll_operator.plan.pods import evaluator, syncer
from atoll_operator.plan.pods.template import PodSettings
from atoll_runtime.contract import ENV_LOCK_MEMORY, HEALTH_PORT

pytestmark = [
    pytest.mark.control,
    pytest.mark.timeout(900),  # the first call may have to build helm and kubectl
]
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "atoll"
KEEP = "helm.sh/resource-policy"
MANAGED_BY = "app.kubernetes.io/managed-by"
Objects = dict[tuple[str, str, str], Any]
MONITORING = {
    "serviceMonitor": ("ServiceMonitor", "atoll-system", "atoll-operator"),
    "podMonitor": ("PodMonitor", "atoll-system", "atoll-runs"),
    "alerts": ("PrometheusRule", "atoll-system", "atoll"),
    "dashboard": ("ConfigMap", "atoll-system", "atoll-dashboard"),
}
"""Value to the object that it adds."""


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


def refusal(*options: str) -> str:
    """Why helm refuses these; empty where it does not."""
    command = [str(find("helm")), "template", "atoll", str(CHART), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr if done.returncode else ""


def operator_pod(objects: Objects) -> Any:
    return objects["Deployment", "atoll-system", "atoll-operator"]["spec"]["template"]


def keys(values: Any, path: str = "") -> list[str]:
    """Of every value, with dots."""
    found = []
    for key, value in values.items():
        found.append(f"{path}{key}")
        if isinstance(value, dict):
            found += keys(value, f"{path}{key}.")
    return found


def environment(objects: Objects) -> dict[str, str]:
    container = operator_pod(objects)["spec"]["containers"][0]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


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


def test_the_overlay_of_the_docs_is_the_chart_with_the_users_images(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    (overlay,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    for folder in ("manifests", "crds"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / "overlay").mkdir()
    (tmp_path / "overlay" / "kustomization.yaml").write_text(overlay)
    rendered = by_name(run(find("kubectl"), "kustomize", tmp_path / "overlay"))
    values = re.findall(r"--set (\S*image\S*=REGISTRY/\w+)", page)
    assert len(values) == 2
    chart = template(*(f"--set={value}" for value in values))
    assert operator_pod(rendered) == operator_pod(chart)
    assert environment(rendered)["ATOLL_RUNTIME_IMAGE"].startswith("REGISTRY/runtime:")
    assert rendered.keys() - {("Namespace", "", "atoll-system")} == chart.keys()


def test_what_the_docs_uninstall_without_helm_is_all_but_definitions_and_namespace() -> None:
    page = (ROOT / "docs" / "operations.md").read_text()
    ((selector, kinds),) = re.findall(r"kubectl delete --all-namespaces --selector (\S+) \\\n  (\S+)\n", page)
    labels = dict(pair.split("=") for pair in selector.split(","))
    base = by_name(run(find("kubectl"), "kustomize", ROOT / "manifests"))
    gone = {
        key
        for key, item in base.items()
        if key[0].lower() + "s" in kinds.split(",")
        and labels.items() <= item["metadata"].get("labels", {}).items()
    }
    assert {kind for kind, _, _ in base.keys() - gone} == {"Namespace", "CustomResourceDefinition"}
    assert (
        not labels.items()
        <= template()["Service", "atoll-system", "atoll-operator"]["metadata"]["labels"].items()
    )


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
        "--set=logFormat=text,resyncSeconds=60,pollSeconds=1",
    )
    found = environment(objects)
    assert json.loads(found["ATOLL_RUNTIME_ENV"]) == {"A": 'x,"y"=1', "B": ""}
    assert found["ATOLL_RUNTIME_IMAGE"] == "r/runtime:2"
    assert found["ATOLL_NAMESPACES"] == "one,two"
    assert (found["ATOLL_LOG_FORMAT"], found["ATOLL_RESYNC_SECONDS"], found["ATOLL_POLL_SECONDS"]) == (
        "text",
        "60",
        "1",
    )


def test_the_right_to_lock_memory_goes_to_the_runtime_beside_its_environment() -> None:
    runtime = environment(template("--set=runtime.env.A=x", "--set=runtime.lockMemory=true"))
    assert json.loads(runtime["ATOLL_RUNTIME_ENV"]) == {"A": "x", ENV_LOCK_MEMORY: "true"}
    for unset in ("--set=runtime.lockMemory=false", "--set=runtime.lockMemory=null"):
        assert json.loads(environment(template(unset))["ATOLL_RUNTIME_ENV"]) == {}


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
    role = objects.get(("ClusterRole", "", "atoll-operator-nodes-atoll-system"), {"rules": []})
    verbs = {verb for rule in role["rules"] if rule["resources"] == ["nodes"] for verb in rule["verbs"]}
    assert verbs == ({"get", "list", "watch"} if granted else set())
    assert (("ClusterRoleBinding", "", "atoll-operator-nodes-atoll-system") in objects) is granted


def test_releases_for_named_namespaces_share_no_name_of_the_whole_cluster_but_the_crds() -> None:
    shared: list[set[tuple[str, str, str]]] = []
    for release in ("one", "two"):
        options = (
            "--namespace",
            release,
            f'--set-json=namespaces=["{release}-runs"]',
            "--set=watchNodes=always",
        )
        shared.append({key for key in template(*options) if not key[1]})
    assert {kind for kind, _, _ in shared[0] & shared[1]} == {"CustomResourceDefinition"}
    assert len(shared[0] - shared[1]) == 2


def test_monitoring_comes_when_asked_for() -> None:
    assert not set(MONITORING.values()) & set(template())
    for value, key in MONITORING.items():
        objects = template(f"--set={value}.enabled=true,{value}.labels.release=prom")
        assert set(objects) - set(template()) == {key}
        assert objects[key]["metadata"]["labels"]["release"] == "prom"


def test_alerts_and_dashboard_reach_the_cluster_as_they_are_in_their_files() -> None:
    objects = template("--set=alerts.enabled=true,dashboard.enabled=true")
    rules = objects["PrometheusRule", "atoll-system", "atoll"]["spec"]
    assert rules == yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
    dashboard = objects["ConfigMap", "atoll-system", "atoll-dashboard"]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    told = json.loads(dashboard["data"]["atoll.json"])
    assert told == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_the_pod_monitor_selects_the_pods_that_serve_metrics_and_gives_them_their_run() -> None:
    key = ("PodMonitor", "atoll-system", "atoll-runs")
    spec = template("--set=podMonitor.enabled=true")[key]["spec"]
    settings = PodSettings(run="r", image="i", pull_policy="Always", service_account=None, environment={})
    syncer_set = syncer.objects(settings, "n", [], SyncerSpec(), 1, 0)[1]
    evaluator_set = evaluator.objects(settings, "n", [], EvaluatorSpec(), 1)[1]
    (wanted,) = spec["selector"]["matchExpressions"]
    (endpoint,) = spec["podMetricsEndpoints"]
    (relabelled,) = endpoint["relabelings"]
    for made in (syncer_set, evaluator_set):
        pod = made["spec"]["template"]
        assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["labels"][wanted["key"]] in wanted["values"]
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == HEALTH_PORT
    assert relabelled["sourceLabels"] == ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", LABEL_RUN)]
    assert spec["namespaceSelector"] == {"any": True}
    narrow = template("--set=podMonitor.enabled=true", '--set-json=namespaces=["one"]')[key]["spec"]
    assert narrow["namespaceSelector"] == {"matchNames": ["one"]}


def test_an_image_can_be_given_by_its_digest() -> None:
    digest = "sha256:" + "0af1" * 16
    objects = template(f"--set=image.digest={digest},runtime.image.digest={digest},runtime.image.tag=v2")
    assert operator_pod(objects)["spec"]["containers"][0]["image"] == f"atoll.dev/operator@{digest}"
    assert environment(objects)["ATOLL_RUNTIME_IMAGE"] == f"atoll.dev/runtime@{digest}"


def test_the_operators_pods_take_labels_annotations_and_a_priority() -> None:
    plain = operator_pod(template())
    added = '{"team":"a","app.kubernetes.io/name":"other"}'
    pod = operator_pod(
        template("--set=priorityClassName=high,podAnnotations.a/b=c", f"--set-json=podLabels={added}")
    )
    assert pod["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "a"}
    assert pod["metadata"]["annotations"] == {"a/b": "c"}
    assert pod["spec"] == {**plain["spec"], "priorityClassName": "high"}


def test_an_operator_that_is_not_ready_keeps_no_node_from_being_drained() -> None:
    budget = template("--set=replicas=2")["PodDisruptionBudget", "atoll-system", "atoll-operator"]
    assert budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


@pytest.mark.long
def test_no_value_can_be_taken_away_unless_that_means_none_of_it() -> None:
    """`null` takes a default away."""
    parts = "--set=" + ",".join(f"{part}.enabled=true" for part in MONITORING)
    plain = template(parts)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    optional = [key for key in keys(values) if not key.startswith(("resources", "dashboard.labels"))]
    for key in optional:
        command = [str(find("helm")), "template", "atoll", str(CHART), "--namespace=atoll-system", parts]
        done = subprocess.run(
            [*command, f"--set={key}=null"], capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode:
            assert f"missing property '{key.rpartition('.')[2]}'" in done.stderr, done.stderr
        else:
            assert by_name(done.stdout) == plain, key
    assert operator_pod(template("--set=resources=null"))["spec"]["containers"][0]["resources"] == {}


def texts(value: Any, names: set[str]) -> list[Any]:
    """What stands under these names, anywhere below."""
    if isinstance(value, list):
        return [found for item in value for found in texts(item, names)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key in names and not isinstance(item, (dict, list))]
    return own + [found for item in value.values() for found in texts(item, names)]


def test_a_value_that_looks_like_a_number_stays_the_text_that_it_is() -> None:
    """YAML takes 1e3, 1:30 and 0123 for numbers, and the API server would refuse those."""
    objects = template(
        *("--namespace", "123", "--set=watchNodes=always,replicas=2", "--set-string=priorityClassName=1e3"),
        *("--set-string=image.repository=1,image.tag=30", '--set-json=imagePullSecrets=["0123"]'),
        *('--set-json=namespaces=["456"]', *(f"--set={part}.enabled=true" for part in MONITORING)),
        *('--set-json=podLabels={"a":"1"}', '--set-json=resources={"limits":{"cpu":2,"memory":"1e9"}}'),
    )
    pod = objects["Deployment", "123", "atoll-operator"]["spec"]["template"]
    assert pod["spec"]["priorityClassName"] == "1e3"
    assert pod["spec"]["containers"][0]["image"] == "1:30"
    account = objects["ServiceAccount", "123", "atoll-operator"]
    assert account["imagePullSecrets"] == [{"name": "0123"}]
    for key, item in objects.items():
        if key[0] == "CustomResourceDefinition":
            continue
        found = texts(item, {"namespace", "name", "image", "priorityClassName"})
        assert [text for text in found if not isinstance(text, str)] == [], key
    assert {namespace for _, namespace, _ in objects} == {"", "123", "456"}


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
        ("--set=image.digest=latest", "image/digest"),
        ("--set=crds=null", "crds"),
        ("--set=serviceMonitor=null", "serviceMonitor"),
        ("--set=priorityClassName=High", "priorityClassName"),
        ("--set=image.tag=a b", "image/tag"),
        ("--set=runtime.image.tag=a@b", "runtime/image/tag"),
        ("--set=image.repository=a b", "image/repository"),
        ("--set=imagePullSecrets={a b}", "imagePullSecrets/0"),
        ("--set=podLabels.a b=c", "'a b'"),
        ("--set=podLabels.a=b c", "podLabels/a"),
        ("--set=podAnnotations.a b=c", "'a b'"),
        ("--set=nodeSelector.-a=c", "'-a'"),
        ("--set=alerts.labels.a/b/c=d", "'a/b/c'"),
        ("--set=resources.limits.memry=1Gi", "memry"),
        ("--set=resources.limit.memory=1Gi", "limit"),
        ("--set=resources.requests.cpu=true", "resources/requests/cpu"),
    ],
)
def test_wrong_values_are_refused_by_name(option: str, field: str) -> None:
    assert field in refusal(option)

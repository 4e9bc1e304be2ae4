"""The chart by the real helm: what it renders, what it refuses, and that the kustomize base is the same."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import ended
from pages import blocks
from pod_kinds import workloads

from atoll_local.programs import find
from atoll_operator.api.group import LABEL_RUN
from atoll_operator.plan.pods.gang import METRICS_PORT
from atoll_runtime.contract import ENV_LOCK_MEMORY, HEALTH_PORT

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "charts" / "atoll"
PAGE = (ROOT / "docs" / "operations.md").read_text()
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


def by_name(text: str) -> Objects:
    """Documents by kind, namespace and name."""
    found: Objects = {}
    for item in yaml.load_all(text, yaml.CSafeLoader):  # a tenth of the other loader's time
        if item:
            meta = item["metadata"]
            found[item["kind"], meta.get("namespace", ""), meta["name"]] = item
    return found


@functools.cache
def render(*options: str) -> subprocess.CompletedProcess[str]:
    return ended(find("helm"), "template", "atoll", CHART, "--namespace", "atoll-system", *options)


def template(*options: str) -> Objects:
    done = render("--skip-tests", *options)
    assert done.returncode == 0, done.stderr
    return by_name(done.stdout)


def kustomize(folder: Path) -> Objects:
    return by_name(ended(find("kubectl"), "kustomize", folder).stdout)


def overlaid(folder: Path, overlay: str) -> Objects:
    """What an overlay of the kustomize base renders."""
    for part in ("manifests", "crds"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "overlay").mkdir()
    (folder / "overlay" / "kustomization.yaml").write_text(overlay)
    return kustomize(folder / "overlay")


def operator_pod(objects: Objects) -> Any:
    return objects["Deployment", "atoll-system", "atoll-operator"]["spec"]["template"]


def environment(objects: Objects) -> dict[str, str]:
    container = operator_pod(objects)["spec"]["containers"][0]
    return {entry["name"]: entry["value"] for entry in container["env"] if "value" in entry}


def kinds(objects: Objects) -> set[str]:
    return {kind for kind, _, _ in objects}


@pytest.mark.parametrize("wide", [False, True], ids=["the release's namespace", "every namespace"])
def test_the_kustomize_base_and_the_chart_are_the_same(tmp_path: Path, wide: bool) -> None:
    components = ["../manifests/cluster-wide"] if wide else []
    base = overlaid(tmp_path, json.dumps({"resources": ["../manifests"], "components": components}))
    chart = template("--set=clusterWide=" + str(wide).lower())
    for item in [*chart.values(), *base.values()]:
        item["metadata"].get("labels", {}).pop(MANAGED_BY, None)
        item["metadata"].get("annotations", {}).pop(KEEP, None)
        if not item["metadata"].get("annotations", True):
            del item["metadata"]["annotations"]
    del base["Namespace", "", "atoll-system"]
    assert base == chart


def test_the_overlay_of_the_docs_is_the_chart_with_the_users_images(tmp_path: Path) -> None:
    [overlay] = blocks("operations.md", "yaml")
    rendered = overlaid(tmp_path, overlay)
    values = re.findall(r"--set (\S*image\S*=REGISTRY/\w+)", PAGE)
    assert len(values) == 2
    chart = template(*(f"--set={value}" for value in values))
    assert operator_pod(rendered) == operator_pod(chart)
    assert environment(rendered)["ATOLL_RUNTIME_IMAGE"].startswith("REGISTRY/runtime:")
    assert rendered.keys() - {("Namespace", "", "atoll-system")} == chart.keys()


def test_what_the_docs_uninstall_without_helm_is_all_but_definitions_and_namespace() -> None:
    ((selector, listed),) = re.findall(
        r"kubectl delete --all-namespaces --selector (\S+) \\\n  (\S+)\n", PAGE
    )
    labels = dict(pair.split("=") for pair in selector.split(",")).items()
    kept = {
        key
        for key, item in kustomize(ROOT / "manifests").items()
        if f"{key[0].lower()}s".replace("ys", "ies") not in listed.split(",")
        or not labels <= item["metadata"].get("labels", {}).items()
    }
    assert {kind for kind, _, _ in kept} == {"Namespace", "CustomResourceDefinition"}
    service = template()["Service", "atoll-system", "atoll-operator"]
    assert not labels <= service["metadata"]["labels"].items()


def test_the_definitions_stay_when_the_release_goes() -> None:
    definitions = [item for key, item in template().items() if key[0] == "CustomResourceDefinition"]
    assert [item["metadata"]["annotations"][KEEP] for item in definitions] == ["keep"] * 2


def test_values_become_the_settings_of_the_operator() -> None:
    runtime = {"image": {"repository": "r/runtime", "tag": "2"}, "env": {"A": 'x,"y"=1', "B": ""}}
    objects = template(
        f"--set-json=runtime={json.dumps(runtime)}",
        '--set-json=namespaces=["one","two"]',
        "--set=logFormat=text,resyncSeconds=60,pollSeconds=1,crds.enabled=false",
    )
    assert "CustomResourceDefinition" not in kinds(objects)
    found = environment(objects)
    assert json.loads(found["ATOLL_RUNTIME_ENV"]) == {"A": 'x,"y"=1', "B": ""}
    wanted = {
        "RUNTIME_IMAGE": "r/runtime:2", "NAMESPACES": "one,two", "LOG_FORMAT": "text", "RESYNC_SECONDS": "60",
        "POLL_SECONDS": "1",
    }  # fmt: skip
    assert {name: found[f"ATOLL_{name}"] for name in wanted} == wanted
    for lock, extra in (("true", {ENV_LOCK_MEMORY: "true"}), ("false", {}), ("null", {})):
        runtime = environment(template("--set=runtime.env.A=x", f"--set=runtime.lockMemory={lock}"))
        assert json.loads(runtime["ATOLL_RUNTIME_ENV"]) == {"A": "x", **extra}


@pytest.mark.parametrize(
    ("options", "namespaces"),
    [((), ["atoll-system"]), (('--set-json=namespaces=["one","two"]',), ["one", "two"])],
)
def test_the_operator_has_rights_in_its_own_namespace_or_in_those_that_are_named(options, namespaces) -> None:
    objects = template(*options)
    assert environment(objects)["ATOLL_NAMESPACES"] == ",".join(namespaces)
    rules = template("--set=clusterWide=true")["ClusterRole", "", "atoll-operator"]["rules"]
    granted = {key[1] for key in objects if key[0] == "Role" and key[2] == "atoll-operator"}
    assert granted == set(namespaces)
    for namespace in namespaces:
        assert objects["Role", namespace, "atoll-operator"]["rules"] == rules
        binding = objects["RoleBinding", namespace, "atoll-operator"]
        assert binding["subjects"][0]["namespace"] == "atoll-system"
    wide = [item for key, item in objects.items() if key[0] == "ClusterRole" and "operator" in key[2]]
    assert [rule for item in wide for rule in item["rules"]] == [
        {"apiGroups": ["atoll.dev"], "resources": ["pods"], "verbs": ["own"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    ], "and nothing else in other namespaces"


def test_a_release_for_the_whole_cluster_has_its_rights_by_a_cluster_role() -> None:
    objects = template("--set=clusterWide=true")
    assert environment(objects)["ATOLL_NAMESPACES"] == ""
    assert ("ClusterRoleBinding", "", "atoll-operator") in objects
    assert [key for key in objects if key[0] == "Role"] == [("Role", "atoll-system", "atoll-operator-lease")]
    both = render("--set=clusterWide=true", '--set-json=namespaces=["one"]')
    assert both.returncode and "namespaces" in both.stderr


def test_a_release_may_create_nothing_outside_its_namespaces() -> None:
    off = ("crds", "admissionPolicy", "metrics")
    objects = template(*(f"--set={part}.enabled=false" for part in off), "--set=watchNodes=false")
    assert {namespace for _, namespace, _ in objects} == {"atoll-system"}
    assert "ATOLL_METRICS_PORT" not in environment(objects)


@pytest.mark.parametrize(
    ("options", "namespaces"),
    [
        ((), {"ours"}),
        (("--set=clusterWide=true",), {"ours"}),
        (('--set-json=namespaces=["one","two"]',), {"one", "two"}),
        (("--set=networkPolicies.enabled=false",), set()),
    ],
)
def test_served_namespaces_get_the_tested_network_policies_with_the_operator_where_it_is(
    options: tuple[str, ...], namespaces: set[str]
) -> None:
    text = (ROOT / "manifests" / "networkpolicies.yaml").read_text()
    assert (CHART / "files" / "networkpolicies.yaml").read_text() == text
    wanted = [each["spec"] for each in yaml.safe_load_all(text.replace("atoll-system", "ours"))]
    objects = template(*options, "--namespace=ours")
    policies = {key: item["spec"] for key, item in objects.items() if key[0] == "NetworkPolicy"}
    assert {namespace for _, namespace, _ in policies} == namespaces
    for namespace in namespaces:
        assert [spec for key, spec in policies.items() if key[1] == namespace] == wanted


def test_only_named_peers_reach_pods_of_runs_and_the_peers_of_metrics_can_be_chosen() -> None:
    def rules(*options: str) -> list[Any]:
        policies = (item for key, item in template(*options).items() if key[0] == "NetworkPolicy")
        return [rule for policy in policies for rule in policy["spec"]["ingress"]]

    plain = rules()
    assert all(rule.get("from") for rule in plain)
    metrics = [rule for rule in plain if rule["ports"] in ([{"port": HEALTH_PORT}], [{"port": METRICS_PORT}])]
    assert len(metrics) == 3
    for peers in ([{"ipBlock": {"cidr": "10.0.0.0/8"}}], []):  # without any, everybody
        chosen = rules(f"--set-json=networkPolicies.metricsFrom={json.dumps(peers)}")
        assert chosen == [rule | {"from": peers} if rule in metrics else rule for rule in plain]


def test_who_may_edit_or_view_a_namespace_may_do_so_with_runs() -> None:
    """What they may do then: test_control_plugin."""
    objects = template()
    edit, view = (objects["ClusterRole", "", f"atoll-{name}"] for name in ("edit", "view"))
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert "rbac.authorization.k8s.io/aggregate-to-view" not in edit["metadata"]["labels"]
    assert [set(rule["verbs"]) for rule in view["rules"]] == [{"get", "list", "watch"}]
    assert all(
        {"learnerunits", "trainingruns/scale"} <= {*role["rules"][0]["resources"]} for role in (edit, view)
    )


def test_several_operators_are_kept_apart_and_not_all_evicted_at_once() -> None:
    budget = ("PodDisruptionBudget", "atoll-system", "atoll-operator")
    assert budget not in template()
    objects = template("--set=replicas=2,leaseSeconds=20")
    spec = objects["Deployment", "atoll-system", "atoll-operator"]["spec"]
    assert spec["replicas"] == 2
    assert environment(objects)["ATOLL_LEASE_SECONDS"] == "20"
    labels = spec["template"]["metadata"]["labels"].items()
    assert objects[budget]["spec"]["selector"]["matchLabels"].items() <= labels
    assert objects[budget]["spec"]["maxUnavailable"] == 1, "a drain can always go on"
    assert objects[budget]["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
    rule = spec["template"]["spec"]["affinity"]["podAntiAffinity"]
    (preferred,) = rule["preferredDuringSchedulingIgnoredDuringExecution"]
    assert preferred["podAffinityTerm"]["labelSelector"]["matchLabels"].items() <= labels


def test_releases_share_no_name_of_the_whole_cluster_but_the_definitions_and_their_roles() -> None:
    one, two = ({key for key in template("--namespace", release) if not key[1]} for release in ("one", "two"))
    with_definitions = one - {key for key in template("--set=crds.enabled=false", "--namespace", "one")}
    assert one & two == with_definitions
    assert {kind for kind, _, _ in one & two} == {"CustomResourceDefinition", "ClusterRole"}


def test_monitoring_comes_when_asked_for_as_it_is_in_its_files() -> None:
    plain, objects = template(), Objects()
    assert not set(MONITORING.values()) & set(plain)
    for value, key in MONITORING.items():
        labels = json.dumps({"release": "prom", MANAGED_BY: "another"})
        objects = template(f"--set={value}.enabled=true", f"--set-json={value}.labels={labels}")
        assert set(objects) - set(plain) == {key}
        labelled = objects[key]["metadata"]["labels"]
        assert (labelled["release"], labelled[MANAGED_BY]) == ("prom", "Helm")
    objects |= template("--set=alerts.enabled=true")
    own = (
        'absent(atoll_leader{namespace="atoll-system"})'  # another release's leader says nothing of this one
    )
    rules = (CHART / "files" / "alerts.yaml").read_text().replace("absent(atoll_leader)", own)
    assert own in rules and objects[MONITORING["alerts"]]["spec"] == yaml.safe_load(rules)
    dashboard = objects[MONITORING["dashboard"]]
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    told = json.loads(dashboard["data"]["atoll.json"])
    assert told == json.loads((CHART / "files" / "dashboard.json").read_text())


def test_the_pod_monitor_selects_the_pods_that_serve_metrics_and_gives_them_their_run() -> None:
    key = ("PodMonitor", "atoll-system", "atoll-runs")
    spec = template("--set=podMonitor.enabled=true")[key]["spec"]
    (wanted,) = spec["selector"]["matchExpressions"]
    (endpoint,) = spec["podMetricsEndpoints"]
    (relabelled,) = endpoint["relabelings"]
    for made in workloads().values():
        pod = made["spec"]["template"]
        assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
        assert pod["metadata"]["labels"][wanted["key"]] in wanted["values"]
        ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
        assert ports[endpoint["port"]] == HEALTH_PORT
    assert relabelled["sourceLabels"] == ["__meta_kubernetes_pod_label_" + re.sub(r"\W", "_", LABEL_RUN)]
    assert spec["namespaceSelector"] == {"matchNames": ["atoll-system"]}
    wide = template("--set=podMonitor.enabled=true,clusterWide=true")[key]["spec"]
    assert wide["namespaceSelector"] == {"any": True}


def test_the_service_monitor_scrapes_the_port_that_asks_for_a_token() -> None:
    objects = template("--set=serviceMonitor.enabled=true")
    (endpoint,) = objects["ServiceMonitor", "atoll-system", "atoll-operator"]["spec"]["endpoints"]
    assert endpoint["scheme"] == "https" and endpoint["bearerTokenFile"]
    ports = objects["Service", "atoll-system", "atoll-operator"]["spec"]["ports"]
    (target,) = (port["targetPort"] for port in ports if port["name"] == endpoint["port"])
    listens = {
        port["name"]: port["containerPort"]
        for port in operator_pod(objects)["spec"]["containers"][0]["ports"]
    }
    assert str(listens[target]) == environment(objects)["ATOLL_METRICS_PORT"]
    for value in ("serviceMonitor", "alerts"):
        without = render(f"--set={value}.enabled=true,metrics.enabled=false")
        assert without.returncode and "metrics/enabled" in without.stderr


def test_images_can_be_given_by_their_digests() -> None:
    digest = "sha256:" + "0af1" * 16
    objects = template(f"--set=image.digest={digest},runtime.image.digest={digest},runtime.image.tag=v2")
    assert operator_pod(objects)["spec"]["containers"][0]["image"] == f"atoll.dev/operator@{digest}"
    assert environment(objects)["ATOLL_RUNTIME_IMAGE"] == f"atoll.dev/runtime@{digest}"


def test_the_operators_pods_take_labels_annotations_priority_affinity_spread_and_variables() -> None:
    plain, variable = operator_pod(template()), {"name": "HTTPS_PROXY", "value": "http://p"}
    spread = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    own = {**spread, "labelSelector": {"matchLabels": {"team": "a"}}}
    given = {
        "podLabels": {"team": "a", "app.kubernetes.io/name": "other"}, "podAnnotations": {"a/b": "c"},
        "priorityClassName": "high", "affinity": {"nodeAffinity": {"a": 1}}, "topologySpreadConstraints": [spread, own],
        "extraEnv": [variable],
    }  # fmt: skip
    pod = operator_pod(template(*(f"--set-json={name}={json.dumps(value)}" for name, value in given.items())))
    assert pod["metadata"]["labels"] == {**plain["metadata"]["labels"], "team": "a"}
    assert pod["metadata"]["annotations"] == {"a/b": "c"}
    assert pod["spec"]["priorityClassName"] == "high"
    assert pod["spec"]["affinity"] == {"nodeAffinity": {"a": 1}}
    constraint, same = pod["spec"]["topologySpreadConstraints"]
    assert same == own
    selector = constraint.pop("labelSelector")["matchLabels"]
    assert constraint == spread
    assert selector.items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    assert container["env"] == [*plain["spec"]["containers"][0]["env"], variable]
    claims = render('--set-json=resources={"claims":[{"name":"a"}]}')
    assert claims.returncode and "claims" in claims.stderr, "the pod has no resourceClaims"
    ours = render('--set-json=extraEnv=[{"name":"ATOLL_NAMESPACES","value":"x"}]')
    assert ours.returncode and "extraEnv" in ours.stderr


def test_helm_test_asks_the_operator_whether_it_is_ready_and_has_no_rights() -> None:
    key = ("Pod", "atoll-system", "atoll-operator-ready")
    pod, plain = by_name(render().stdout)[key], template()
    assert key not in plain
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    operator = operator_pod(plain)["spec"]
    service = plain["Service", "atoll-system", "atoll-operator"]
    assert not service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    [container] = pod["spec"]["containers"]
    port = service["spec"]["ports"][0]["port"]
    assert f"atoll-operator.atoll-system.svc:{port}/readyz" in container["command"][-1]
    assert container["image"] == operator["containers"][0]["image"]
    assert container["securityContext"] == operator["containers"][0]["securityContext"]
    assert pod["spec"]["securityContext"] == operator["securityContext"]
    assert pod["spec"]["automountServiceAccountToken"] is False


def keys(values: Any, path: str = "") -> list[str]:
    """Of every value, with dots."""
    own = [f"{path}{key}" for key in values]
    return own + [
        each for key, item in values.items() if isinstance(item, dict) for each in keys(item, f"{path}{key}.")
    ]


@pytest.mark.long
def test_no_value_can_be_taken_away_unless_that_means_none_of_it() -> None:
    """`null` takes a default away."""
    parts = "--set=" + ",".join(f"{part}.enabled=true" for part in MONITORING)
    plain = template(parts)
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    optional = [
        key for key in keys(values) if not key.startswith(("resources", "dashboard.labels", "limits."))
    ]
    for key in optional:
        done = render("--skip-tests", parts, f"--set={key}=null")
        if done.returncode:
            assert f"missing property '{key.rpartition('.')[2]}'" in done.stderr, done.stderr
        else:
            assert by_name(done.stdout) == plain, key
    assert operator_pod(template("--set=resources=null"))["spec"]["containers"][0]["resources"] == {}


def texts(value: Any, names: set[str]) -> list[Any]:
    """Values under these names, anywhere below."""
    if isinstance(value, list):
        return [found for item in value for found in texts(item, names)]
    if not isinstance(value, dict):
        return []
    own = [item for key, item in value.items() if key in names and not isinstance(item, (dict, list))]
    return own + [found for item in value.values() for found in texts(item, names)]


def test_a_value_that_looks_like_a_number_stays_the_text_that_it_is() -> None:
    """YAML takes 1e3, 1:30 and 0123 for numbers, and the API server would refuse those."""
    done = render(
        *("--namespace", "123", "--set=replicas=2", "--set-string=priorityClassName=1e3"),
        *("--set-string=image.repository=1,image.tag=30", '--set-json=imagePullSecrets=["0123"]'),
        *('--set-json=namespaces=["456"]', *(f"--set={part}.enabled=true" for part in MONITORING)),
        *('--set-json=podLabels={"a":"1"}', '--set-json=resources={"limits":{"cpu":2,"memory":"1e9"}}'),
    )
    objects = by_name(done.stdout)
    pod = objects["Deployment", "123", "atoll-operator"]["spec"]["template"]["spec"]
    assert (pod["priorityClassName"], pod["containers"][0]["image"]) == ("1e3", "1:30")
    assert objects["ServiceAccount", "123", "atoll-operator"]["imagePullSecrets"] == [{"name": "0123"}]
    names = {"namespace", "name", "image", "priorityClassName", "kubernetes.io/metadata.name"}
    found = [
        text
        for key, item in objects.items()
        if key[0] != "CustomResourceDefinition"
        for text in texts(item, names)
    ]
    assert [text for text in found if not isinstance(text, str)] == []
    assert {namespace for _, namespace, _ in objects} == {"", "123", "456"}


REFUSED = {
    "logFormat=xml": "logFormat", "resyncSeconds=1": "resyncSeconds", "replicas=9": "replicas",
    "leaseSeconds=1": "leaseSeconds", "imag.tag=1": "imag", "runtime.env.A=1": "runtime/env/A",
    "namespaces={Not_A_Name}": "namespaces", "clusterWide=maybe": "clusterWide", "metrics.enabled=1": "metrics/enabled",
    "admissionPolicy=null": "admissionPolicy", "watchNodes=sometimes": "watchNodes",
    "image.repository=": "image/repository", "image.digest=latest": "image/digest", "crds=null": "crds",
    "serviceMonitor=null": "serviceMonitor", "priorityClassName=High": "priorityClassName",
    "image.tag=a b": "image/tag", "runtime.image.tag=a@b": "runtime/image/tag",
    "image.repository=a b": "image/repository",
    "imagePullSecrets={a b}": "imagePullSecrets/0", "podLabels.a b=c": "'a b'", "podLabels.a=b c": "podLabels/a",
    "podAnnotations.a b=c": "'a b'", "nodeSelector.-a=c": "'-a'", "alerts.labels.a/b/c=d": "'a/b/c'",
    "resources.limits.memry=1Gi": "memry", "resources.limit.memory=1Gi": "limit",
    "resources.requests.cpu=true": "resources/requests/cpu", "resources.limits.memory=1Mb": "limits/memory",
    "resources.limits.cpu=-1": "limits/cpu", "runtime.env.A-B=c": "at '/runtime/env': additional properties 'A-B'",
    "networkPolicies.metricsFrom=all": "networkPolicies/metricsFrom", "networkPolicies.metricsFrom[0].cidr=a": "'cidr'",
    "limits.namespaces.Team_A.runs=2": "at '/limits/namespaces': additional properties 'Team_A'",
}  # fmt: skip
"""Value to the field that the refusal names."""


def test_wrong_values_are_refused_by_name() -> None:
    refusals = {value: render(f"--set={value}") for value in REFUSED}
    wrong = [
        value for value, done in refusals.items() if not (done.returncode and REFUSED[value] in done.stderr)
    ]
    assert wrong == []

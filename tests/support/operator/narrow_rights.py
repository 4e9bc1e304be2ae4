"""An operator with no rights but those of a chart that is installed for one namespace."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path

import yaml
from apiserver import Api
from control_bench import Bench

from atoll_local.paths import source_root
from atoll_local.programs import find

NARROW = "atoll-narrow"
APPLY = "application/apply-patch+yaml"
_RIGHTS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def narrow_kubeconfig(bench: Bench, path: Path) -> None:
    """Installs the chart's rights for the bench's namespace alone, and writes a kubeconfig that has no others."""
    command = [
        str(find("helm")),
        "template",
        "atoll",
        str(source_root() / "charts" / "atoll"),
        f"--namespace={NARROW}",
    ]
    command += ["--set=crds.enabled=false", f'--set-json=namespaces=["{bench.namespace}"]']
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NARROW}}
    apply = "?fieldManager=test&force=true"
    bench.api.call("PATCH", f"/api/v1/namespaces/{NARROW}{apply}", namespace, APPLY)
    for item in yaml.safe_load_all(done.stdout):
        if item and item["kind"] in _RIGHTS:
            place = _RIGHTS[item["kind"]].format(item["metadata"]["namespace"])
            bench.api.call("PATCH", f"{place}/{item['metadata']['name']}{apply}", item, APPLY)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    account = _RIGHTS["ServiceAccount"].format(NARROW) + "/atoll-operator/token"
    token = bench.api.call("POST", account, request)["status"]["token"]
    bench.until(
        "its rights count",
        lambda: (
            _narrow_may(bench.api, "pods", "", bench.namespace)
            and _narrow_may(bench.api, "leases", "coordination.k8s.io", NARROW)
        ),
    )
    authority = base64.b64encode(bench.api.authority).decode()
    cluster = {"server": bench.api.server, "certificate-authority-data": authority}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    path.write_text(yaml.safe_dump(config))


def _narrow_may(api: Api, resource: str, group: str, namespace: str) -> bool:
    """Whether the API server has heard of the bindings: its authorizer learns of them by a watch."""
    wanted = {"verb": "create", "resource": resource, "group": group, "namespace": namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": f"system:serviceaccount:{NARROW}:atoll-operator", "resourceAttributes": wanted},
    }
    answer = api.call("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])

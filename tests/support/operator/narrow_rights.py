"""An operator with no rights but those of a chart that is installed for one namespace."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from apiserver import Api, with_token
from control_bench import Bench

from atoll_local.controlplane import ControlPlane
from atoll_local.paths import source_root
from atoll_local.programs import find

NARROW = "atoll-narrow"
APPLY = "application/apply-patch+yaml"
_RIGHTS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
}


def narrow_kubeconfig(plane: ControlPlane, bench: Bench, path: Path) -> Path:
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
    bench.until(
        "its rights count",
        lambda: (
            _narrow_may(bench.api, "pods", "", bench.namespace)
            and _narrow_may(bench.api, "leases", "coordination.k8s.io", NARROW)
        ),
    )
    return with_token(plane, bench.api, path, namespace=NARROW)


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

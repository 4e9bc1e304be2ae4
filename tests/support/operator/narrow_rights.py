"""An operator with no rights but those of a chart that is installed for one namespace."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from apiserver import with_token
from control_bench import Bench

from atoll_local.controlplane import ControlPlane
from atoll_local.kubectl import kubectl
from atoll_local.paths import source_root
from atoll_local.programs import find

NARROW = "atoll-narrow"
RIGHTS = ("ServiceAccount", "Role", "RoleBinding")


def narrow_kubeconfig(plane: ControlPlane, bench: Bench, path: Path) -> Path:
    """Installs the chart's rights for the bench's namespace alone, and writes a kubeconfig that has no others."""
    chart = str(source_root() / "charts" / "atoll")
    values = ("--set=crds.enabled=false", f'--set-json=namespaces=["{bench.namespace}"]')
    command = [str(find("helm")), "template", "atoll", chart, f"--namespace={NARROW}", *values]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NARROW}}
    rights = [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] in RIGHTS]
    for body in (namespace, {"apiVersion": "v1", "kind": "List", "items": rights}):
        plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", body=body)
    user = f"--as=system:serviceaccount:{NARROW}:atoll-operator"
    for what, where in (("pods", bench.namespace), ("leases.coordination.k8s.io", NARROW)):
        # The API server's authorizer learns of the bindings by a watch.
        may = ("auth", "can-i", "create", what, user, f"--namespace={where}")
        bench.until(
            "its rights count", lambda may=may: kubectl(plane.kubeconfig, *may, check=False) == "yes\n"
        )
    return with_token(plane, bench.api, path, namespace=NARROW)

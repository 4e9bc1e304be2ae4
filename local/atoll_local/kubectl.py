"""The real kubectl on a cluster of ours."""

from __future__ import annotations

from pathlib import Path

from atoll_local.errors import ClusterError
from atoll_local.process import run
from atoll_local.programs import find

SECONDS = 60.0
ESTABLISHED = '--for=jsonpath={.status.conditions[?(@.type=="Established")].status}=True'
"""For `wait crd`: `--for=condition` fails for a new CRD without conditions."""


def kubectl(
    kubeconfig: Path, *args: str, check: bool = True, timeout: float = SECONDS, stdin: str | None = None
) -> str:
    """Run kubectl and return its output. Raises `ClusterError` if it failed (with `check`) or took longer than
    `timeout` seconds."""
    command = [str(find("kubectl")), f"--kubeconfig={kubeconfig}", *args]
    name = f"kubectl {' '.join(args[:3])}"
    return run(command, timeout, raises=ClusterError, name=name, check=check, stdin=stdin)

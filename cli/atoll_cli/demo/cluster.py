"""The demo's cluster: a local one, started unless it is up already, with the operator installed by helm."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from atoll_cli.demo.watch import operator_diagnosis
from atoll_cli.errors import CommandError
from atoll_cli.kubectl import Kubectl
from atoll_local.cluster import Cluster
from atoll_local.paths import claim
from atoll_local.process import run
from atoll_local.programs import find

BUCKET = "atoll"
"""The bucket that the sample names."""
NAMESPACE = "atoll-demo"
"""Namespace of the run."""
SYSTEM = "atoll-system"
RELEASE = "atoll"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OPERATOR_READY = 180
"""Time limit in seconds. Ample on two slow cores."""
REMOVED = 120
"""Time limit in seconds for the deletion of a namespace."""


class DemoCluster:
    """What the demo does to its cluster. It replaces the operator, the run and the checkpoints of an earlier demo."""

    def __init__(self, name: str, chart: Path, progress: Callable[[str], None]) -> None:
        """Raises `HostError` if the name is not valid."""
        self.local = Cluster(name, progress)
        self._chart = chart
        self._found_up = self.local.running()
        self._held = ExitStack()
        """The claim on this machine's clusters, held while this process lives."""
        self.reached = False
        """Whether the cluster is up and can be reached."""

    def up(self) -> None:
        """Starts it. Raises `HostError` if this machine cannot run it, `ClusterError` if a part did not come up."""
        self._held.enter_context(claim())
        self.local.up()
        self.local.bucket.start()
        self.local.bucket.create_bucket(BUCKET)
        self._helm_program = find("helm", self.local.progress)
        kubeconfig = self.local.kubeconfig
        self.kubectl = Kubectl(program=find("kubectl"), kubeconfig=kubeconfig, namespace=NAMESPACE)
        self.reached = True

    def install(self) -> None:
        """Installs the operator and makes the run's namespace. Raises `CommandError`: the operator did not come up; the
        message has a diagnosis."""
        self._delete_namespaces(NAMESPACE)
        self.kubectl.apply(_namespace(SYSTEM), _namespace(NAMESPACE))
        environment = f"--set-json=runtime.env={json.dumps(self.local.bucket.environment())}"
        where = f"--set-json=namespaces={json.dumps([NAMESPACE])}"
        wait = ("--wait", f"--timeout={OPERATOR_READY}s")
        try:
            self._helm("upgrade", "--install", RELEASE, str(self._chart), environment, where, *wait)
        except CommandError as error:
            told = operator_diagnosis(replace(self.kubectl, namespace=SYSTEM))
            raise CommandError(f"{error}\n{told}") from error

    def leave(self) -> None:
        """Removes what the demo installed if it found a cluster, else the cluster that it started. Raises
        `CommandError`, `HostError` or `ClusterError` if something could not be removed."""
        if self._found_up and self.reached:
            self._helm("uninstall", RELEASE, "--ignore-not-found")
            self._delete_namespaces(NAMESPACE, SYSTEM)
        # If `up` failed before it made anything, what exists belongs to another command.
        elif self.local.made:
            with suppress(OSError):  # the terminal may have hung up
                self.local.progress(f"removing the cluster {self.local.name}")
            self.local.down()

    def _delete_namespaces(self, *names: str) -> None:
        limit = f"--timeout={REMOVED}s"
        self.kubectl.run("delete", "namespace", *names, "--ignore-not-found", limit, timeout=REMOVED + 10)

    def _helm(self, *arguments: str) -> None:
        """Raises `CommandError`."""
        where = [f"--namespace={SYSTEM}", f"--kubeconfig={self.local.kubeconfig}"]
        command = [str(self._helm_program), *arguments, *where]
        run(command, OPERATOR_READY + 30, raises=CommandError, name=f"helm {arguments[0]}")


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}

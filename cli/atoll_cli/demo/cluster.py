"""The demo's cluster: a local one, started unless it is up already, with the operator installed by helm."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atoll_cli.demo.diagnosis import operator_diagnosis
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.kubectl import Kubectl
from atoll_cli.views import PodView
from atoll_local import faults
from atoll_local.cluster import Cluster
from atoll_local.errors import ClusterError, HostError
from atoll_local.link import Link, shape
from atoll_local.paths import claim
from atoll_local.programs import find

BUCKET = "atoll"
"""The bucket that the sample names."""
NAMESPACE = "atoll-demo"
"""Where the run is."""
SYSTEM = "atoll-system"
RELEASE = "atoll"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OPERATOR_READY = 180
"""Seconds, on two slow cores with room to spare."""
REMOVED = 120
"""Seconds for a namespace to go."""


class DemoCluster:
    """What the demo does to its cluster. An operator, a run and checkpoints of an earlier demo are replaced."""

    def __init__(self, name: str, chart: Path, progress: Callable[[str], None]) -> None:
        """Raises `UsageError` for a name that is none."""
        with _told():
            self._cluster = Cluster(name, progress)
        self._chart = chart
        self._found_up = self._cluster.running()
        self._installed = False
        self._held = ExitStack()
        """For as long as this process lives."""
        self.reached = False
        """The cluster has answered."""

    @property
    def bucket_environment(self) -> Mapping[str, str]:
        """What a client needs to reach the bucket, on this machine and in a pod."""
        return self._cluster.bucket.environment()

    def up(self) -> None:
        """Raises `UsageError` when this machine cannot run it, `CommandError` when a part did not come up."""
        with _told():
            self._held.enter_context(claim())
            self._cluster.up()
            self._cluster.bucket.start()
            self._cluster.bucket.create_bucket(BUCKET)
            self._helm_program = find("helm", self._cluster.progress)
            self.kubectl = Kubectl(program=find("kubectl"), kubeconfig=self._cluster.kubeconfig)
            self.reached = True

    def install(self) -> None:
        """Installs the operator and makes the run's namespace.

        Raises:
            CommandError: it did not come up; the message has a diagnosis.
        """
        self._delete_namespaces(NAMESPACE)
        self._installed = True
        self.kubectl.apply([_namespace(SYSTEM), _namespace(NAMESPACE)])
        environment = f"--set-json=runtime.env={json.dumps(dict(self.bucket_environment))}"
        where = f"--set-json=namespaces={json.dumps([NAMESPACE])}"
        wait = ("--wait", f"--timeout={OPERATOR_READY}s")
        try:
            self._helm("upgrade", "--install", RELEASE, str(self._chart), environment, where, *wait)
        except CommandError as error:
            raise CommandError(f"{error}\n{operator_diagnosis(self.kubectl, SYSTEM)}") from error

    def kill(self, pods: Sequence[PodView]) -> None:
        """Ends every process of these pods at once by SIGKILL; raises `CommandError`."""
        with _told():
            faults.signal_pods(self._cluster, [pod.uid for pod in pods], signal.SIGKILL)

    def power_off(self, node: str) -> None:
        """Raises `CommandError` when no node is called so."""
        with _told():
            faults.power_off(self._cluster, node)

    def link(self, node: str, link: Link) -> None:
        """Gives a node this link; raises `CommandError`."""
        with _told():
            shape(self._cluster.machine(node), link)

    def power_on(self, node: str) -> None:
        """Raises `CommandError` when it does not start."""
        with _told():
            faults.power_on(self._cluster, node)

    def leave(self) -> None:
        """Removes a cluster that the demo started, or what it put on one that was up.

        Raises:
            CommandError: something is left.
        """
        if self._found_up and self._installed:
            self._helm("uninstall", RELEASE, "--ignore-not-found")
            self._delete_namespaces(NAMESPACE, SYSTEM)
        # A machine that was refused before anything was made: what is there is another's.
        if self._cluster.made and not self._found_up:
            self._cluster.progress(f"removing the cluster {self._cluster.name}")
            with _told():
                self._cluster.down()

    def how_to_reach(self) -> str:
        """The command, for the user of a cluster that stays up."""
        return f"export KUBECONFIG={self._cluster.kubeconfig}"

    def _delete_namespaces(self, *names: str) -> None:
        limit = f"--timeout={REMOVED}s"
        self.kubectl.run("delete", "namespace", *names, "--ignore-not-found", limit, timeout=REMOVED + 10)

    def _helm(self, *arguments: str) -> None:
        """Raises `CommandError`."""
        where = [f"--namespace={SYSTEM}", f"--kubeconfig={self._cluster.kubeconfig}"]
        limit = OPERATOR_READY + 30
        try:
            done = subprocess.run(
                [str(self._helm_program), *arguments, *where],
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"helm {arguments[0]} took longer than {limit} s") from error
        if done.returncode != 0:
            # Before its one line of error helm tells of every watch that it tried again.
            words = done.stderr[done.stderr.rfind("Error:") :].strip() or done.stdout.strip()
            raise CommandError(f"helm {arguments[0]} failed: {words}")


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the local cluster as errors of a command."""
    try:
        yield
    except HostError as error:
        raise UsageError(str(error)) from error
    except ClusterError as error:
        raise CommandError(str(error)) from error


def _namespace(name: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}}

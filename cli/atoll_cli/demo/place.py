"""Where the demo runs: a local cluster that it starts, or one that exists."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from atoll_cli.errors import CommandError, UsageError
from atoll_cli.kubectl import Kubectl
from atoll_cli.views import PodView
from atoll_local.cluster import Cluster
from atoll_local.controlplane import CONTEXT
from atoll_local.errors import ClusterError, HostError
from atoll_local.faults import signal_pods
from atoll_local.paths import claim
from atoll_local.programs import find, installed

Progress = Callable[[str], None]
BUCKET = "atoll"
"""The bucket that the sample names."""


class Place(Protocol):
    """A cluster with a bucket."""

    helm: Path
    kubectl: Kubectl
    reached: bool
    """The cluster has answered."""

    @property
    def stays(self) -> bool:
        """The cluster was there before and will be after: only what was put on it is removed."""

    @property
    def replaces(self) -> bool:
        """An operator, a run and checkpoints that stand here already may be replaced: nobody depends on them."""

    @property
    def bucket_environment(self) -> Mapping[str, str]:
        """What a client on this machine needs to reach the bucket."""

    @property
    def runtime_environment(self) -> Mapping[str, str]:
        """The same for a runtime pod."""

    def up(self) -> None:
        """Brings it to ready."""

    def kill(self, pods: Sequence[PodView], namespace: str) -> None:
        """Ends every process of these pods at once, without a word to them."""

    def down(self) -> None:
        """Removes what `up` made."""

    def how_to_reach(self) -> str:
        """For the user, when it is left up."""


class LocalPlace:
    """A local cluster; one that is up already is used and left up."""

    def __init__(self, name: str, progress: Progress) -> None:
        """Raises `UsageError` for a name that is none."""
        try:
            self._cluster = Cluster.existing(name, progress) or Cluster(name, progress=progress)
        except HostError as error:
            raise UsageError(str(error)) from error
        self._found_up = self._cluster.running() if self._cluster.kubeconfig.exists() else False
        self._held = ExitStack()
        """For as long as this process lives."""
        self.reached = False

    @staticmethod
    def is_current(name: str, context: str) -> bool:
        """True when kubectl points at the local cluster of that name: it brings a bucket of its own."""
        try:
            cluster = Cluster.existing(name)
        except HostError as error:
            raise UsageError(str(error)) from error
        here = os.environ.get("KUBECONFIG")
        return cluster is not None and context == CONTEXT and here == str(cluster.kubeconfig)

    @property
    def stays(self) -> bool:
        return self._found_up

    @property
    def replaces(self) -> bool:
        return True

    @property
    def bucket_environment(self) -> Mapping[str, str]:
        return self._cluster.bucket.environment()

    @property
    def runtime_environment(self) -> Mapping[str, str]:
        return self._cluster.bucket.environment()

    def up(self) -> None:
        """Raises `UsageError` when this machine cannot, `CommandError` when a part did not come up."""
        try:
            self._held.enter_context(claim())
            self._cluster.up()
            self._cluster.bucket.start()
            self._cluster.bucket.create_bucket(BUCKET)
            self.helm = find("helm", self._cluster.progress)
            self.kubectl = Kubectl(program=find("kubectl"), kubeconfig=self._cluster.kubeconfig)
            self.reached = True
        except HostError as error:
            raise UsageError(str(error)) from error
        except ClusterError as error:
            raise CommandError(str(error)) from error

    def kill(self, pods: Sequence[PodView], namespace: str) -> None:
        try:
            signal_pods(self._cluster, [pod.uid for pod in pods], signal.SIGKILL)
        except ClusterError as error:
            raise CommandError(str(error)) from error

    def down(self) -> None:
        # A machine that was refused before anything was made: what is there is another's.
        if self._cluster.made and not self._found_up:
            self._cluster.progress(f"removing the cluster {self._cluster.name}")
            try:
                self._cluster.down()
            except HostError as error:
                raise CommandError(str(error)) from error

    def how_to_reach(self) -> str:
        return f"export KUBECONFIG={self._cluster.kubeconfig}"


class ContextPlace:
    """A cluster of the user's, with a bucket of the user's."""

    def __init__(self, context: str, runtime_environment: Mapping[str, str]) -> None:
        self._context = context
        self._runtime_environment = runtime_environment
        self.reached = False

    @property
    def stays(self) -> bool:
        return True

    @property
    def replaces(self) -> bool:
        return False

    @property
    def bucket_environment(self) -> Mapping[str, str]:
        return {}

    @property
    def runtime_environment(self) -> Mapping[str, str]:
        return self._runtime_environment

    def up(self) -> None:
        """Raises `UsageError` when a program is missing, or the context does not answer."""
        try:
            self.helm = installed("helm")
            self.kubectl = Kubectl(program=installed("kubectl"), context=self._context)
        except HostError as error:
            raise UsageError(str(error)) from error
        try:
            self.kubectl.run("get", "--raw", "/readyz", timeout=20)
        except CommandError as error:
            raise UsageError(f"the context {self._context!r} does not answer: {error}") from error
        self.reached = True

    def kill(self, pods: Sequence[PodView], namespace: str) -> None:
        names = [pod.name for pod in pods]
        self.kubectl.run(
            "-n", namespace, "delete", "pod", *names, "--force", "--grace-period=0", "--wait=false"
        )

    def down(self) -> None:
        return

    def how_to_reach(self) -> str:
        return f"kubectl config use-context {self._context}"

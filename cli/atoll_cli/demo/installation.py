"""What a demo puts on a cluster, and takes away again: the operator's release and two namespaces."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll_cli.demo.diagnosis import operator_diagnosis
from atoll_cli.demo.place import Place
from atoll_cli.errors import CommandError, UsageError

NAMESPACE = "atoll-demo"
"""Where the run is."""
SYSTEM = "atoll-system"
RELEASE = "atoll"
LABEL = "atoll.dev/demo"
"""On all that a demo makes; its value is the demo's name. What does not carry it is not removed."""
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
OPERATOR = "app.kubernetes.io/name=atoll,app.kubernetes.io/component=operator"
DEFINITION = "trainingruns.atoll.dev"
ANY_STATE = (
    "--deployed", "--failed", "--pending", "--superseded", "--uninstalled", "--uninstalling",
)  # fmt: skip
"""Of a release: Helm 3 lists those deployed and failed where nothing is said, Helm 4 all."""

OPERATOR_READY = 180
"""Seconds, on two slow cores with room to spare."""
REMOVED = 120
"""Seconds for a namespace to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """What is installed."""

    path: Path
    operator_image: str | None = None
    """`repository:tag`; None: the chart's own."""
    runtime_image: str | None = None


class Installation:
    """One demo's share of a cluster."""

    def __init__(self, place: Place, chart: Chart, demo: str) -> None:
        self._place = place
        self._chart = chart
        self._label = f"{LABEL}={demo}"
        self._demo = demo
        self.begun = False
        """Something of this demo may be on the cluster."""

    def check(self) -> None:
        """Raises `UsageError` when the cluster has an Atoll already, and is none of ours to replace it."""
        if not self._place.replaces and (found := self._standing()):
            raise UsageError(
                f"the context {self._place.kubectl.context!r} has {' and '.join(found)} already: the demo installs "
                f"an Atoll of its own and removes it, and so wants a cluster that has none"
            )

    def make(self) -> None:
        """Installs the operator and makes the run's namespace.

        Raises:
            CommandError: it did not come up; the message has a diagnosis.
            UsageError: there is an Atoll already.
        """
        self.check()
        if self._place.replaces:
            self._kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")
        self.begun = True
        if not self._exists(SYSTEM):
            self._create(SYSTEM)
        self._create(NAMESPACE)
        install = ("upgrade", "--install") if self._place.replaces else ("install",)
        try:
            self._helm(
                *install,
                RELEASE,
                str(self._chart.path),
                f"--labels={self._label}",
                "--wait",
                f"--timeout={OPERATOR_READY}s",
                f"--set-json=runtime.env={json.dumps(dict(self._place.runtime_environment))}",
                *_image("image", self._chart.operator_image),
                *_image("runtime.image", self._chart.runtime_image),
            )
        except CommandError as error:
            raise CommandError(f"{error}\n{operator_diagnosis(self._place.kubectl, SYSTEM)}") from error

    def remove(self) -> None:
        """Takes away what this demo made, as far as it came; the definitions stay, as after every `helm uninstall`.

        Raises:
            CommandError: something is left; the message says what to do.
        """
        if not self.begun:
            return
        problems = []
        for step in (self._uninstall, self._delete_namespaces):
            try:
                step()
            except CommandError as error:
                problems.append(str(error))
        if problems:
            raise CommandError("; ".join([*problems, f"by hand: {self.how_to_remove()}"]))

    def how_to_remove(self) -> str:
        """The commands, for the user."""
        kubectl = self._place.kubectl
        here = f" --context {kubectl.context}" if kubectl.context else ""
        there = f" --kube-context {kubectl.context}" if kubectl.context else ""
        return (
            f"helm{there} uninstall {RELEASE} --namespace {SYSTEM}; "
            f"kubectl{here} delete namespace --selector {self._label}"
        )

    def _standing(self) -> list[str]:
        """What of Atoll there is, in words."""
        released = self._released()
        found = [f"a namespace {NAMESPACE!r}"] if self._exists(NAMESPACE) else []
        found += [f"a release {RELEASE!r} in {SYSTEM!r}"] if released else []
        operators = self._namespaces_with("deployments", "--selector", OPERATOR)
        found += [f"an operator in {name!r}" for name in operators if name != SYSTEM or not released]
        # The operator of a demo would take up runs that another one left while it is away.
        if self._place.kubectl.run("get", "crd", DEFINITION, "--ignore-not-found", "-o", "name").strip():
            found += [f"a TrainingRun in {name!r}" for name in self._namespaces_with(DEFINITION)]
        return found

    def _namespaces_with(self, kind: str, *arguments: str) -> list[str]:
        items = self._place.kubectl.get(kind, "--all-namespaces", *arguments)["items"]
        return sorted({item["metadata"]["namespace"] for item in items})

    def _exists(self, namespace: str) -> bool:
        said = self._place.kubectl.run("get", "namespace", namespace, "--ignore-not-found", "-o", "name")
        return said.strip() == f"namespace/{namespace}"

    def _released(self, *arguments: str) -> bool:
        said = self._helm("list", "--short", f"--filter=^{RELEASE}$", *ANY_STATE, *arguments)
        return RELEASE in said.split()

    def _create(self, namespace: str) -> None:
        """Not `apply`: a namespace of somebody else is not to be changed."""
        labels = {**RESTRICTED, LABEL: self._demo}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}}
        self._place.kubectl.run("create", "-f", "-", stdin=json.dumps(body))

    def _uninstall(self) -> None:
        if self._released("--selector", self._label):
            self._helm("uninstall", RELEASE)

    def _delete_namespaces(self) -> None:
        self._kubectl("delete", "namespace", "--selector", self._label)

    def _kubectl(self, *arguments: str) -> None:
        self._place.kubectl.run(*arguments, f"--timeout={REMOVED}s", timeout=REMOVED + 10)

    def _helm(self, *arguments: str) -> str:
        """What helm printed; raises `CommandError`."""
        command = [str(self._place.helm), *arguments, "--namespace", SYSTEM]
        kubectl = self._place.kubectl
        command += [f"--kubeconfig={kubectl.kubeconfig}"] if kubectl.kubeconfig else []
        command += [f"--kube-context={kubectl.context}"] if kubectl.context else []
        limit = OPERATOR_READY + 30
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired as error:
            raise CommandError(f"helm {arguments[0]} took longer than {limit} s") from error
        if done.returncode != 0:
            # Before its one line of error helm tells of every watch that it tried again.
            words = done.stderr[done.stderr.rfind("Error:") :].strip() or done.stdout.strip()
            raise CommandError(f"helm {arguments[0]} failed: {words}")
        return done.stdout


def _image(value: str, image: str | None) -> Sequence[str]:
    if image is None:
        return ()
    repository, _, tag = image.rpartition(":")
    return (f"--set-string={value}.repository={repository}", f"--set-string={value}.tag={tag}")

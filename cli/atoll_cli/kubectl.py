"""The real kubectl, with a time-out for every call."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll_cli.errors import CommandError, UsageError

LOGGED = re.compile(r"[IWEF]\d{4} \d\d:")
"""How a line begins that kubectl's client library logged, some of them again and again, before kubectl speaks."""


class KubectlError(CommandError):
    """kubectl failed or did not answer in time; the message holds what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl on one cluster."""

    program: Path
    kubeconfig: Path | None = None
    """None: as the user's environment says."""
    context: str | None = None

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """What kubectl printed.

        Raises:
            KubectlError: it failed, or took longer than `timeout` seconds.
        """
        command = [str(self.program), *self.flags(), *arguments]
        words = " ".join(arguments[:4])
        try:
            done = subprocess.run(
                command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise KubectlError(f"kubectl {words} did not answer within {timeout:.0f} s") from error
        if done.returncode != 0:
            raise KubectlError(f"kubectl {words} failed: {_said(done.stderr) or done.stdout.strip()}")
        return done.stdout

    def get(self, kinds: str, *arguments: str, timeout: float = 30) -> Any:
        """A list of objects, as JSON, with its `items`; raises `KubectlError`."""
        said = self.run("get", kinds, *arguments, "-o", "json", timeout=timeout)
        try:
            found = json.loads(said)
        except json.JSONDecodeError as error:
            raise KubectlError(f"kubectl get {kinds} answered {said[:80]!r}, which is no JSON") from error
        items = found.get("items") if isinstance(found, dict) else None
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise KubectlError(f"kubectl get {kinds} answered {said[:80]!r}, which is no list of objects")
        return found

    def apply(self, objects: Sequence[Mapping[str, Any]], *arguments: str) -> str:
        """Applies objects given as data."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.run("apply", *arguments, "-f", "-", stdin=json.dumps(listing))

    def flags(self) -> list[str]:
        """What names the cluster, for kubectl."""
        chosen = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        return [*chosen, f"--context={self.context}"] if self.context else chosen


def find_kubectl() -> Path:
    """The user's kubectl, for a cluster of the user's; raises `UsageError` where there is none."""
    from atoll_local.errors import HostError
    from atoll_local.programs import installed

    try:
        return installed("kubectl")
    except HostError as error:
        raise UsageError(str(error)) from error


def _said(stderr: str) -> str:
    """What kubectl itself said, or all of it where it said nothing."""
    said = [line for line in stderr.strip().splitlines() if not LOGGED.match(line)]
    return "\n".join(said) or stderr.strip()

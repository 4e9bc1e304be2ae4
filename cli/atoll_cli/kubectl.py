"""Calls kubectl, with a time-out for every call."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll_cli.errors import CommandError
from atoll_local.programs import installed

LOGGED = re.compile(r"[IWEF]\d{4} \d\d:")
"""Start of a line that kubectl's client library logs before kubectl's own message, often repeatedly."""


class KubectlError(CommandError):
    """kubectl failed or did not answer in time; the message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl on one cluster, in one namespace."""

    program: Path
    kubeconfig: Path | None = None
    """None for the one of the user's environment."""
    context: str | None = None
    namespace: str | None = None
    """None for the context's."""

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl and return its output. Raises `KubectlError`: it failed, or took longer than `timeout`
        seconds."""
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
        """Get a list of objects as JSON, with `items`. Raises `KubectlError`."""
        return json.loads(self.run("get", kinds, *arguments, "-o", "json", timeout=timeout))

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Apply objects given as data."""
        listing = {"apiVersion": "v1", "kind": "List", "items": objects}
        self.run("apply", "-f", "-", stdin=json.dumps(listing))

    def flags(self) -> list[str]:
        """kubectl's options that select the cluster and the namespace."""
        places = {"kubeconfig": self.kubeconfig, "context": self.context, "namespace": self.namespace}
        return [f"--{name}={value}" for name, value in places.items() if value]


def chosen(options: argparse.Namespace) -> Kubectl:
    """Return kubectl for the context and the namespace of the options. Raises `HostError`."""
    return Kubectl(program=installed("kubectl"), context=options.context, namespace=options.namespace)


def _said(stderr: str) -> str:
    """kubectl's own message, or the whole output if there is none."""
    said = [line for line in stderr.strip().splitlines() if not LOGGED.match(line)]
    return "\n".join(said) or stderr.strip()

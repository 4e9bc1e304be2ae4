"""Calls kubectl, with a time-out for every call."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll_cli.errors import CommandError

LOGGED = re.compile(r"[IWEF]\d{4} \d\d:")
"""Start of a line that kubectl's client library logs before kubectl's own message, often repeatedly."""


class KubectlError(CommandError):
    """kubectl failed or did not answer in time; the message has its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl on one cluster."""

    program: Path
    kubeconfig: Path | None = None
    """None for the one of the user's environment."""
    context: str | None = None

    def run(self, *arguments: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl and return its output.

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
        """Get a list of objects as JSON, with `items`. Raises `KubectlError`."""
        return json.loads(self.run("get", kinds, *arguments, "-o", "json", timeout=timeout))

    def apply(self, objects: Sequence[Mapping[str, Any]], *arguments: str) -> str:
        """Apply objects given as data."""
        listing = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        return self.run("apply", *arguments, "-f", "-", stdin=json.dumps(listing))

    def flags(self) -> list[str]:
        """kubectl's options that select the cluster."""
        chosen = [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig else []
        return [*chosen, f"--context={self.context}"] if self.context else chosen


def find_kubectl() -> Path:
    """Return the path of the user's kubectl. Raises `HostError` if there is none."""
    from atoll_local.programs import installed

    return installed("kubectl")


def chosen(options: argparse.Namespace) -> tuple[Kubectl, list[str]]:
    """Return kubectl for the context of the options, and the arguments for their namespace. Raises `HostError`."""
    where = ["-n", options.namespace] if options.namespace else []
    return Kubectl(program=find_kubectl(), context=options.context), where


def _said(stderr: str) -> str:
    """kubectl's own message, or the whole output if there is none."""
    said = [line for line in stderr.strip().splitlines() if not LOGGED.match(line)]
    return "\n".join(said) or stderr.strip()

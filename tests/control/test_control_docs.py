"""Every kubectl command of the docs and samples, as it is written, on a real API server: none is wrong in itself."""

from __future__ import annotations

import re
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from commands import ended
from control_bench import Bench

from atoll_local.controlplane import ControlPlane
from atoll_local.programs import find

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "fields.md"),
    *sorted((ROOT / "manifests").rglob("*.yaml")),
    ROOT / "charts" / "atoll" / "templates" / "NOTES.txt",
]
TYPED = ("gke", "monitoring", "operations", "plugin")
"""Pages whose blocks `test_control_howto` types."""
MINIMAL = "manifests/samples/minimal.yaml"
CHANGES = ("apply", "annotate", "create", "delete", "label", "patch", "scale")
"""Are tried without effect."""
EXCUSES = (
    "NotFound", "not found", "AlreadyExists", "no matching resources", "timed out waiting for the condition",
    "no TrainingRun is called", "no pod has the labels",  # of kubectl atoll
    'resource type "workload"',  # Kueue's, which is not installed
)  # fmt: skip
"""What may be said of an object that does not exist, or exists, or stays as it is."""


def commands(path: Path) -> list[str]:
    """Those of a page: lines of its blocks of code or comments, and spans of code with an operand."""
    text = re.sub(r" *\\\n *", " ", path.read_text()).replace("{{ .Release.Namespace }}", "atoll-system")
    lines = (line.lstrip("# ") for line in text.splitlines())
    whole = [re.split(r" {3,}", line)[0] for line in lines if line.startswith("kubectl ")]
    whole = [] if path.stem in TYPED else whole
    spans = re.findall(r"`(kubectl [^`]+)`", text) if path.suffix == ".md" else []
    later = re.findall(r"^#.*[:;] +(kubectl .+)$", text, re.M) if path.suffix == ".yaml" else []
    return [*whole, *later, *(span for span in spans if len(span.split()) > 2)]


COMMANDS = {f"{path.name}: {command}": command for path in PAGES for command in commands(path)}


def arguments(command: str, namespace: str) -> list[str]:
    """With names in place of capitals, and no effect."""
    command = re.sub(r"\$?\bNAMESPACE\b", namespace, command)
    command = re.sub(r"=N\b", "=1", command)
    command = re.sub(r"\$?\b[A-Z]{2,}\b", lambda found: found[0].strip("$").lower(), command)
    command = re.sub(r"\b(run|first)\.yaml\b", MINIMAL, command)
    command = command.replace("overlay/", "manifests/")  # the overlay is laid over it
    words = shlex.split(command, comments=True)[1:]
    if words[0] == "atoll":
        return words
    if any(word in CHANGES for word in words):
        words.append("--dry-run=server")
    if "-w" in words:
        words.append("--request-timeout=1s")
    if "logs" in words:
        words.append("--pod-running-timeout=1s")
    assert words[0] != "wait" or "--timeout=" in command, "else it is 30 s, which is no time for a run"
    if "wait" in words or "rollout" in words:
        words = [word for word in words if not word.startswith("--timeout")] + ["--timeout=1s"]
    return words


def complaints(command: str, plane: ControlPlane, namespace: str) -> list[str]:
    """What is said of the command, but for excuses."""
    words, kubectl = arguments(command, namespace), str(find("kubectl"))
    program = [kubectl, *words]
    if words[0] == "atoll":  # as kubectl calls its plugin
        program = [sys.executable, "-m", "atoll_cli.plugin", *words[1:]]
    environment = {"KUBECONFIG": str(plane.kubeconfig), "ATOLL_KUBECTL": kubectl}
    done = ended(*program, cwd=ROOT, environment=environment)
    excuses = (*EXCUSES, "Timeout", "deadline") if "-w" in words else EXCUSES
    lines = done.stderr.strip().splitlines() if done.returncode else []
    return [line for line in lines if not any(word in line for word in excuses)]


def test_every_command_of_the_docs_can_be_typed(plane: ControlPlane, bench: Bench) -> None:
    with ThreadPoolExecutor(4) as pool:  # many wait for their time-out
        said = pool.map(lambda command: complaints(command, plane, bench.namespace), COMMANDS.values())
        assert {place: lines for place, lines in zip(COMMANDS, said, strict=True) if lines} == {}


def test_a_wrong_command_would_be_noticed(plane: ControlPlane, bench: Bench) -> None:
    for wrong in (
        "kubectl get trainingruns,learnerunits -w",
        "kubectl delete -f crds/",
        "kubectl get truns",
        "kubectl atoll x",
    ):
        assert complaints(wrong, plane, bench.namespace), wrong

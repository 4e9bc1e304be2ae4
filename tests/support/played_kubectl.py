"""A kubectl on PATH that answers as the API server would, for a cluster with one run and one unit."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll_cli import __main__ as atoll

LEDGER = {"fragments": 1, "trained": 10, "merged": 7, "inFlight": 1, "discarded": {"Missed": 2}}
RUN = {
    "kind": "TrainingRun",
    "metadata": {"name": "r", "namespace": "ml", "uid": "1"},
    "spec": {"target": {"globalSteps": 300}},
    "status": {"phase": "Running", "globalStep": 40, "conditions": [], "ledger": LEDGER},
}
UNIT = {
    "kind": "LearnerUnit",
    "metadata": {"name": "r-a-0", "namespace": "ml", "uid": "2"},
    "spec": {"run": "r", "pool": "a"},
    "status": {"phase": "Learning", "incarnation": 3, "conditions": [], "ledger": LEDGER},
}


def pod(name: str, host: int, state: str = "running", **labels: str) -> dict[str, Any]:
    """A pod whose container is in this state, beside one that was injected and runs."""
    own = {"atoll.dev/run": "r", "atoll.dev/host": str(host), **labels}
    container = "operator" if "operator" in name else "main"
    states = {container: state, "injected": "running"}
    told = [{"name": each, "state": {its: {}}, "restartCount": 0} for each, its in states.items()]
    metadata = {"name": name, "uid": name, "labels": own}
    return {"kind": "Pod", "metadata": metadata, "spec": {}, "status": {"containerStatuses": told}}


OPERATOR = {"app.kubernetes.io/name": "atoll", "app.kubernetes.io/component": "operator"}
OBJECTS = [
    RUN,
    UNIT,
    pod("r-a-0-3-0", 0, **{"atoll.dev/unit": "r-a-0"}),
    pod("r-a-0-3-1", 1, **{"atoll.dev/unit": "r-a-0"}),
    pod("r-syncer-0", 0, **{"atoll.dev/component": "syncer"}),
    pod("atoll-operator-x", 0, **OPERATOR),
    pod("atoll-other-x", 0, **{"app.kubernetes.io/name": "atoll"}),
]
KUBECTL = f"""#!{sys.executable} -IS
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = [word for word in sys.argv[1:] if not word.startswith(("--context", "--namespace"))]
with (folder / "calls").open("a") as calls:
    calls.write(json.dumps(sys.argv[1:]) + "\\n")
refusal = (folder / "refusal").read_text()
if refusal:
    sys.exit(refusal)
objects = json.loads((folder / "objects").read_text())
verb, kinds = words[0], words[1]
name = words[2] if len(words) > 2 and not words[2].startswith("-") else ""
def value(flag):
    return words[words.index(flag) + 1] if flag in words else ""
if verb == "logs":
    print("log of", words[1])
    after = sorted(folder.glob("after-*"))
    if after:
        after[0].replace(folder / "objects")
    sys.exit(0)
if words[1] == "--raw":
    metrics = folder / ("shard-" + words[2].partition(":")[0].rpartition("-")[2])
    if not metrics.exists():
        sys.exit("Error from server (Forbidden): no pods/proxy")
    print(metrics.read_text())
    sys.exit(0)
wanted = [kind.partition(".")[0].removesuffix("s") for kind in kinds.split(",")]
found = [each for each in objects if each["kind"].lower() in wanted]
labels = dict(pair.split("=") for pair in value("-l").split(",") if pair)
found = [each for each in found if labels.items() <= each["metadata"].get("labels", {{}}).items()]
if name:
    found = [each for each in found if each["metadata"]["name"] == name]
    if not found:
        sys.exit(f'Error from server (NotFound): {{kinds}} "{{name}}" not found')
output = value("-o")
if output == "name":
    print("\\n".join(f"{{each['kind'].lower()}}.atoll.dev/{{each['metadata']['name']}}" for each in found))
elif output.startswith("jsonpath"):
    print(found[0].get("status", {{}}).get("phase", ""), end="")
elif verb == "patch" and not output:
    print(f"{{found[0]['kind'].lower()}}.atoll.dev/{{name}} patched")
elif output == "yaml":
    print("kind:", found[0]["kind"])
else:
    print(json.dumps(found[0] if name else {{"items": found}}))
"""
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(name="kubectl")
def kubectl_fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the kubectl on PATH."""
    program = tmp_path / "kubectl"
    program.write_text(KUBECTL)
    program.chmod(0o755)
    (tmp_path / "objects").write_text(json.dumps(OBJECTS))
    (tmp_path / "refusal").write_text("")
    (tmp_path / "calls").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("ATOLL_KUBECTL", str(program))
    return tmp_path


@pytest.fixture(name="call")
def call_fixture(kubectl: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Exit status, output and errors of a command of the plugin, or of `atoll`."""

    def called(*arguments: str, commands: str = "atoll_cli.plugin.options") -> tuple[int, str, str]:
        try:
            status = atoll.main(list(arguments), commands)
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return called


@pytest.fixture(name="atoll_on")
def atoll_on_fixture(call: Call, kubectl: Path) -> Call:
    """Calls a command of `atoll` on a cluster with these objects."""

    def called(items: list[dict[str, Any]], *arguments: str) -> tuple[int, str, str]:
        (kubectl / "objects").write_text(json.dumps(items))
        return call(*arguments, commands="atoll_cli.options")

    return called

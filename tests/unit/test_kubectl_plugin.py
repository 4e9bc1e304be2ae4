"""`kubectl atoll`: every command with a kubectl on PATH that answers as the API server would."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from atoll_cli.plugin.__main__ import main
from atoll_cli.plugin.completion import execute as complete

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


def pod(name: str, host: int, **labels: str) -> dict[str, Any]:
    own = {"atoll.dev/run": "r", "atoll.dev/host": str(host), **labels}
    return {"kind": "Pod", "metadata": {"name": name, "uid": name, "labels": own}, "spec": {}}


OBJECTS = [
    RUN,
    UNIT,
    pod("r-a-0-3-0", 0, **{"atoll.dev/unit": "r-a-0"}),
    pod("r-a-0-3-1", 1, **{"atoll.dev/unit": "r-a-0"}),
    pod("r-syncer-0", 0, **{"atoll.dev/component": "syncer"}),
    pod("atoll-operator-x", 0, **{"app.kubernetes.io/name": "atoll"}),
]
KUBECTL = f"""#!{sys.executable} -IS
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = [word for word in sys.argv[1:] if not word.startswith("--context")]
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
    sys.exit("Error from server (Forbidden): no pods/proxy")
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
elif output == "yaml":
    print("kind:", found[0]["kind"])
else:
    print(json.dumps(found[0] if name else {{"items": found}}))
"""
Call = Callable[..., tuple[int, str, str]]

COMMANDS = {
    "status": ["status", "trun/r"],
    "status-all": ["status", "-A"],
    "top": ["top", "r"],
    "ledger": ["ledger", "r"],
    "logs": ["logs", "lu/r-a-0"],
    "logs-syncer": ["logs", "syncer"],
    "logs-operator": ["logs", "operator"],
    "suspend": ["suspend", "r"],
    "resume": ["resume", "r"],
    "scale": ["scale", "r", "--units", "4"],
    "checkpoint": ["checkpoint", "r"],
    "heal": ["heal", "r-a-0"],
    "drain": ["drain", "r-a-0"],
}
"""A call of every command that needs a cluster."""
PATCHES = {
    "suspend": {"spec": {"suspend": True}},
    "resume": {"spec": {"suspend": False}},
    "scale": {"spec": {"units": 4}},
    "checkpoint": {"metadata": {"annotations": {"atoll.dev/checkpoint": "40"}}},
    "heal": {"metadata": {"annotations": {"atoll.dev/heal": "3"}}},
    "drain": {"metadata": {"annotations": {"atoll.dev/drain": "3"}}},
}


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


@pytest.fixture
def call(kubectl: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Exit status, output and errors of a command of the plugin."""

    def called(*arguments: str) -> tuple[int, str, str]:
        try:
            status = main(list(arguments))
        except SystemExit as ended:
            status = int(ended.code or 0)
        out, err = capfd.readouterr()
        return status, out, err

    return called


def calls(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


@pytest.mark.parametrize("arguments", COMMANDS.values(), ids=COMMANDS)
def test_every_command_works_helps_and_fails_in_one_sentence(
    call: Call, kubectl: Path, arguments: list[str]
) -> None:
    status, out, err = call(arguments[0], "--help")
    assert (status, err) == (0, "") and f"kubectl atoll {arguments[0]}" in out
    status, out, err = (
        call(*arguments, "-n", "ml", "--context", "prod") if "-A" not in arguments else call(*arguments)
    )
    assert (status, err) == (0, "") and out.strip()
    if "-A" not in arguments:
        assert all("--context=prod" in each for each in calls(kubectl))
    if arguments[0] != "logs":
        for form, read in (("json", json.loads), ("yaml", yaml.safe_load)):
            status, out, _ = call(*arguments, "-o", form)
            assert status == 0 and isinstance(read(out), dict)
    for refusal in (
        'Error from server (Forbidden): trainingruns.atoll.dev is forbidden: User "u" cannot get resource',
        "The connection to the server localhost:1 was refused - did you specify the right host or port?",
    ):
        (kubectl / "refusal").write_text(refusal)
        status, out, err = call(*arguments)
        assert (status, out, err.count("\n")) == (1, "", 1) and refusal in err
    (kubectl / "refusal").write_text("")
    (kubectl / "objects").write_text("[]")
    status, out, err = call(*arguments)
    if "-A" in arguments:
        assert (status, out) == (0, "there is no TrainingRun\n")
    else:
        assert (status, out, err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("command", PATCHES)
def test_a_change_is_one_patch_of_the_object(call: Call, kubectl: Path, command: str) -> None:
    status, out, _ = call(*COMMANDS[command])
    patches = [each for each in calls(kubectl) if each[0] == "patch"]
    assert status == 0 and len(patches) == 1
    [patch] = patches
    assert json.loads(patch[patch.index("-p") + 1]) == PATCHES[command]
    assert {"--type=merge", "--field-manager=kubectl-atoll"} <= set(patch)
    name = "learnerunit.atoll.dev/r-a-0" if command in ("heal", "drain") else "trainingrun.atoll.dev/r"
    assert out.startswith(f"{name} ")
    assert call(*COMMANDS[command], "-o", "name")[1] == f"{name}\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["status", "lu/r"], 2, "'lu/r': NAME or trun/NAME is wanted"),
        (["heal", "trun/r"], 2, "'trun/r': NAME or lu/NAME is wanted"),
        (["scale", "r", "--units", "-1"], 2, "--units -1: 0 or more is wanted"),
        (["status", "r", "-w", "-o", "yaml"], 2, "--watch goes with"),
        (["scale", "r"], 2, "--units"),
        (["nothing"], 2, "invalid choice"),
    ],
)
def test_wrong_usage_is_status_2(call: Call, arguments: list[str], status: int, told: str) -> None:
    ended, out, err = call(*arguments)
    assert (ended, out) == (status, "") and told in err


def test_names_are_those_of_kubectl(call: Call) -> None:
    assert call("status", "r", "-o", "name")[1] == "trainingrun.atoll.dev/r\nlearnerunit.atoll.dev/r-a-0\n"
    assert call("status", "-o", "name")[1] == "trainingrun.atoll.dev/r\n"


def test_wide_has_more_columns_and_top_the_fastest_unit_first(call: Call, kubectl: Path) -> None:
    slow = {**UNIT, "status": {**UNIT["status"], "tokensPerSecond": 5.0}}
    fast = {**UNIT, "metadata": {"name": "r-b-0"}, "status": {**UNIT["status"], "tokensPerSecond": 9.0}}
    (kubectl / "objects").write_text(json.dumps([RUN, slow, fast]))
    assert [line.split()[0] for line in call("top", "r")[1].splitlines()] == ["UNIT", "r-b-0", "r-a-0"]
    for arguments in (["status"], ["status", "r"]):
        narrow, wide = call(*arguments)[1], call(*arguments, "-o", "wide")[1]
        assert len(wide.splitlines()[-1].split()) > len(narrow.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("arguments", "pods"),
    [
        (["logs", "r-a-0"], {"r-a-0-3-0"}),
        (["logs", "r-a-0", "--all-hosts"], {"r-a-0-3-0", "r-a-0-3-1"}),
        (["logs", "syncer", "trun/r"], {"r-syncer-0"}),
        (["logs", "operator"], {"atoll-operator-x"}),
    ],
)
def test_logs_are_of_the_pods_that_were_asked_for(call: Call, arguments: list[str], pods: set[str]) -> None:
    assert set(call(*arguments)[1].splitlines()) == {f"log of {name}" for name in pods}


def test_a_followed_log_goes_on_with_the_next_incarnation_until_the_unit_is_finished(
    call: Call, kubectl: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_cli.plugin.logs.back_off", lambda looks, chance: 0.01)
    healed = pod("r-a-0-4-0", 0, **{"atoll.dev/unit": "r-a-0"})
    finished = {**UNIT, "status": {**UNIT["status"], "phase": "Finished"}}
    (kubectl / "after-1").write_text(json.dumps([RUN, UNIT, healed]))
    (kubectl / "after-2").write_text(json.dumps([RUN, finished]))
    status, out, err = call("logs", "r-a-0", "-f")
    assert (status, out, err) == (0, "log of r-a-0-3-0\nlog of r-a-0-4-0\n", "")
    assert all("-f" in words for words in calls(kubectl) if words[0] == "logs")


@pytest.mark.parametrize(
    ("words", "candidates"),
    [
        (["sus"], ["suspend"]),
        (["heal", ""], ["r-a-0"]),
        (["heal", "lu/"], ["lu/r-a-0"]),
        (["logs", ""], ["operator", "r-a-0", "syncer"]),
        (["logs", "syncer", ""], ["r"]),
        (["status", "-n", "ml", "trun/"], ["trun/r"]),
        (["status", "r", "-o", "j"], ["json"]),
        (["suspend", "r", ""], []),
        (["scale", "r", "--u"], ["--units"]),
    ],
)
def test_completion_knows_commands_flags_runs_and_units(
    kubectl: Path, capsys: pytest.CaptureFixture[str], words: list[str], candidates: list[str]
) -> None:
    assert complete(words) == 0
    assert capsys.readouterr().out.splitlines() == [*candidates, ":4"]


def test_completion_without_a_cluster_says_nothing(kubectl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kubectl / "refusal").write_text("no route")
    assert complete(["heal", ""]) == 0
    assert capsys.readouterr() == (":4\n", "")


def test_plan_and_replay_are_those_of_atoll(call: Call) -> None:
    assert "RUN.yaml" in call("plan", "--help")[1]
    assert "TAPE" in call("replay", "--help")[1]

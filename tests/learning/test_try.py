"""The tutorial, and `atoll try` as a user calls it: processes of this machine, one of them killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import ended
from compile_cache import kept_programs
from safetensors.numpy import load_file

from atoll_cli.trial.command import BUILT_IN

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "/tmp/atoll-first"
"""In the tutorial; the test uses one of its own."""
TIMEOUT = 600
"""Seconds. A minute on two quiet cores; others may use them too."""
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


def atoll(*words):
    """The command, which shares compiled programs with other tests."""
    command = (sys.executable, "-m", "atoll_cli", *map(str, words))
    return ended(*command, environment=kept_programs(), cwd=ROOT, timeout=TIMEOUT)


def manifest_and_commands(folder):
    """The run of the tutorial, and its commands that need no Kubernetes, with `folder` in place of its own."""
    text = (ROOT / "docs" / "tutorial.md").read_text().replace(FOLDER, str(folder))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    [manifest] = [block for language, block in blocks if language == "yaml"]
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    return manifest, [shlex.split(line) for line in lines if line.startswith("atoll ") and " -n " not in line]


def test_every_command_of_the_tutorial_without_kubernetes_does_what_it_says(tmp_path, processes_of):
    manifest, commands = manifest_and_commands(tmp_path)
    file = tmp_path / "first.yaml"
    file.write_text(manifest)
    assert [command[1] for command in commands] == ["data", "data", "try", "export"]
    said = {}
    for command in commands:
        words = [file if word == "first.yaml" else word for word in command[1:]]
        done = atoll(*words, *(["--json"] if words[0] == "try" else []))
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        said[command[1]] = done.stdout
    summary = json.loads(said["try"])
    assert (summary["passed"], summary["failures"], summary["complete"]) == (True, [], True)
    assert summary["healSecondsOperator"] > 0
    assert summary["seededStep"] > 0
    assert (summary["victim"], set(summary["stepsOfOthers"])) == (
        "first-v6e-1",
        {"first-v5p-0", "first-v6e-0"},
    )
    assert min(summary["stepsOfOthers"].values()) > 0
    assert summary["podsKept"]
    assert summary["margin"] > 1
    assert (tmp_path / "bucket" / "global" / str(summary["globalStep"]) / "manifest.json").exists()
    assert not processes_of(tmp_path)
    assert list((tmp_path / "out" / "pods").glob("*/log"))
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert sum(tensor.size for tensor in tensors.values()) > 200_000


def test_the_run_that_is_built_in_is_the_tutorials():
    manifest, _ = manifest_and_commands("/FOLDER")
    assert yaml.safe_load(manifest)["spec"] == yaml.safe_load(BUILT_IN.read_text())["spec"]


def test_a_run_that_cannot_start_ends_the_trial_with_its_reason(tmp_path, data, processes_of):
    file, folder = tmp_path / "run.yaml", tmp_path / "try"
    text = BUILT_IN.read_text().replace("file:///FOLDER/data", data).replace("/FOLDER/", f"{tmp_path}/")
    file.write_text(text.replace("preset: 250k", "task: no_such:Task").replace("units: 2", "units: 1"))
    done = atoll("try", "--json", file, "--folder", folder)
    assert done.returncode == 1, done.stderr
    [failure] = json.loads(done.stdout)["failures"]
    assert "ModelInvalid: model.task: 'no_such:Task'" in failure
    assert not processes_of(folder)


def test_the_run_that_is_built_in_trains_and_ctrl_c_ends_every_process_at_once(tmp_path, processes_of):
    page = (ROOT / "docs" / "try.md").read_text()
    built_in, own = (shlex.split(line, comments=True) for line in re.findall(r"^atoll try.*$", page, re.M))
    assert own[2:] == ["RUN.yaml", "--folder", "out"], "the tutorial types it"
    folder = tmp_path / "try"
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "atoll_cli", *built_in[1:], "--folder", str(folder)],
        env={**os.environ, **kept_programs()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert any("Training to a quarter of" in line for line in process.stdout), "all units learn"
    assert len(processes_of(folder)) == 4, "a syncer and three learners"
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines() == [f"logs, data and checkpoints are kept in {folder}", "atoll: interrupted"]
    assert not processes_of(folder)

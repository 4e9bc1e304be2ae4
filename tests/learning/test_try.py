"""`atoll try` as a user calls it: processes of this machine, one of them killed."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compile_cache import kept_programs

from atoll_cli.trial.command import BUILT_IN

TIMEOUT = 600
"""Seconds. A minute and a half on two quiet cores; others may use them too."""
STEPS = 128
"""A third more than of the built-in run: on a machine that other tests use, a learner takes longer to come back."""
pytestmark = pytest.mark.timeout(TIMEOUT + 60)


def processes_of(folder):
    """Command lines of the processes whose environment names a path below this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def trial(*options):
    """What `atoll try --json` ends with."""
    command = [sys.executable, "-m", "atoll_cli", "try", "--json", *map(str, options)]
    environment = {**os.environ, **kept_programs()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)


def test_a_killed_learner_comes_back_from_the_checkpoint_while_the_others_train_on(tmp_path):
    folder = tmp_path / "try"
    page = (Path(__file__).resolve().parents[2] / "docs" / "try.md").read_text()
    built_in, own = (shlex.split(line, comments=True) for line in re.findall(r"^atoll try.*$", page, re.M))
    assert own[2:] == ["RUN.yaml", "--folder", "out"], "test_tutorial types it"
    done = trial(*built_in[2:], "--folder", folder, "--steps", STEPS)
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout)
    assert (summary["passed"], summary["failures"], summary["complete"]) == (True, [], True)
    assert summary["healSecondsOperator"] > 0
    assert summary["seededStep"] > 0
    assert (summary["victim"], set(summary["stepsOfOthers"])) == ("try-v6e-1", {"try-v5p-0", "try-v6e-0"})
    assert min(summary["stepsOfOthers"].values()) > 0
    assert summary["podsKept"]
    assert summary["margin"] > 1
    assert (folder / "bucket" / "global" / str(summary["globalStep"]) / "manifest.json").exists()
    assert not processes_of(folder)


def test_a_run_that_cannot_start_ends_the_trial_with_its_reason(tmp_path, data):
    file, folder = tmp_path / "run.yaml", tmp_path / "try"
    text = BUILT_IN.read_text().replace("file:///FOLDER/data", data).replace("/FOLDER/", f"{tmp_path}/")
    file.write_text(text.replace("preset: 250k", "task: no_such:Task"))
    done = trial(file, "--folder", folder)
    assert done.returncode == 1, done.stderr
    [failure] = json.loads(done.stdout)["failures"]
    assert "ModelInvalid: model.task: 'no_such:Task'" in failure
    assert not processes_of(folder)


def test_ctrl_c_ends_every_process_at_once(tmp_path):
    folder = tmp_path / "try"
    command = [sys.executable, "-m", "atoll_cli", "try", "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + TIMEOUT
    while len(processes_of(folder)) < 4:  # a syncer and three learners
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert told.splitlines() == [f"logs, data and checkpoints are kept in {folder}", "atoll: interrupted"]
    assert not processes_of(folder)

"""`atoll try` as a user calls it: processes of this machine, one of them killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from atoll_cli.trial.command import BUILT_IN

TIMEOUT = 600
"""Seconds. A minute and a half on two quiet cores; others may use them too."""
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
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)


def test_a_killed_learner_comes_back_from_the_checkpoint_while_the_others_train_on(tmp_path):
    folder = tmp_path / "try"
    done = trial("--folder", folder)
    assert done.returncode == 0, done.stderr[-4000:]
    summary = json.loads(done.stdout)
    killed = summary["killed"]
    assert (summary["passed"], summary["failures"], summary["phase"]) == (True, [], "Complete")
    assert killed["healSeconds"] > 0
    assert killed["seededStep"] > 0
    assert len(killed["stepsOfOthers"]) == 2
    assert min(killed["stepsOfOthers"].values()) > 0
    assert {name: count > 0 for name, count in summary["restarts"].items()} == {
        "try-v5p-0": False, "try-v6e-0": False, "try-v6e-1": True,
    }  # fmt: skip
    assert summary["heldOut"]["after"]["loss"] < summary["heldOut"]["before"]["loss"] - 1
    assert (folder / "bucket" / "global" / str(summary["globalStep"]) / "manifest.json").exists()
    assert not processes_of(folder)


def test_learners_that_cannot_start_end_the_trial_with_their_reason(tmp_path):
    file, folder = tmp_path / "run.yaml", tmp_path / "try"
    file.write_text(BUILT_IN.read_text().replace("/FOLDER/", f"{tmp_path}/"))
    done = trial(file, "--folder", folder)
    assert done.returncode == 1
    [failure] = json.loads(done.stdout)["failures"]
    assert "fails again and again: DataInvalid: " in failure
    assert "meta.json is missing" in failure
    assert not processes_of(folder)

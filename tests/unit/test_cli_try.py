"""What `atoll try` refuses before it starts a process, and what it says of a full disk."""

import subprocess
import sys
from pathlib import Path

import pytest

from atoll_cli.__main__ import main
from atoll_cli.trial.command import BUILT_IN


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "file:///FOLDER/data",
            "gs://corpus/data",
            "spec.data.uri 'gs://corpus/data': file:///absolute/path is wanted",
        ),
        (
            "file:///FOLDER/bucket",
            "file:///",
            "spec.checkpoint.uri 'file:///': file:///absolute/path is wanted",
        ),
        (
            "units: 2",
            "units: 20",
            "22 processes, one a host and one a shard of the syncer; at most 16 are wanted",
        ),
        ("units: 2", "units: 0", "at least two units are wanted, so that one can be lost"),
        ("globalSteps: ", "tokens: 10000", "spec.target.globalSteps: 2 or more are wanted; or give --steps"),
        ("sequenceLength: 128", "sequenceLength: 1", "spec.data.sequenceLength"),
    ],
)
def test_a_run_that_cannot_be_shown_is_refused_by_the_field(
    old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(BUILT_IN.read_text().replace(old, new))
    assert main(["try", str(file), "--folder", str(tmp_path / "new")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "--folder", str(tmp_path)]) == 2
    assert "a folder that does not exist is wanted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1", "not YAML"),
        ("only words", "one document of kind TrainingRun is wanted; there are 0"),
        (BUILT_IN.read_text().replace("model:", "modell:"), "modell"),
        (BUILT_IN.read_text(), "file:///FOLDER/data: no data set here: meta.json is missing"),
    ],
)
def test_a_file_that_is_no_run_and_missing_data_are_one_sentence(
    text: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(text)
    assert main(["try", str(file), "--folder", str(tmp_path / "new")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.timeout(600)
def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """A limit of the size of files is met where the space of a disk would end."""
    command = [sys.executable, "-m", "atoll_cli", "try", "--folder", str(tmp_path / "new")]
    done = subprocess.run(
        # The limit is in blocks of 512 bytes. Python itself may not fork: JAX, which other tests load, has threads.
        ["sh", "-c", 'ulimit -f 200 && exec "$@"', "sh", *command],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 1
    *_, kept, said = done.stderr.splitlines()
    assert "are kept in" in kept and "File too large" in said

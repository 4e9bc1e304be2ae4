"""What `atoll try` refuses before it starts a process."""

from pathlib import Path

import pytest

from atoll_cli.__main__ import main
from atoll_cli.trial.command import BUILT_IN
from atoll_runtime.data.importer import Order, run_import, sources
from atoll_runtime.data.tokenizer import Bytes

FAULTS = (
    ("file:///FOLDER/data", "gs://c/data", "spec.data.uri 'gs://c/data': file:///absolute/path is wanted"),
    ("file:///FOLDER/bucket", "file:///", "spec.checkpoint.uri 'file:///': file:///absolute/path is wanted"),
    (
        "units: 2",
        "units: 20",
        "22 processes, one a host and one a shard of the syncer; at most 16 are wanted",
    ),
    ("units: 2", "units: 0", "at least two units are wanted, so that one can be lost"),
    ("globalSteps: ", "tokens: 10000", "spec.target.globalSteps: 2 or more are wanted; or give --steps"),
    ("model:", "modell:", "modell"),
    ("", "", "file:///FOLDER/data: no data set here: meta.json is missing"),
)
"""Text of the built-in run, its replacement, and the message. More about files: tests/simulator/test_cli_plan."""


@pytest.mark.parametrize(("old", "new", "told"), FAULTS, ids=[row[2][:40] for row in FAULTS])
def test_a_run_that_cannot_be_shown_is_refused_by_the_field_before_anything_is_made(
    old: str, new: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(BUILT_IN.read_text().replace(old, new) if old else BUILT_IN.read_text())
    assert main(["try", str(file), "--folder", str(tmp_path / "new")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("held_out", "told"),
    [
        (0, "splits: 'heldout' is missing; there is train"),
        (0.3, "tokens hold no example of"),
    ],
)
def test_data_on_which_the_model_cannot_be_measured_are_refused_before_it_trains(
    held_out: float, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, uri = tmp_path / "text.jsonl", f"file://{tmp_path}/data"
    text.write_text("".join(f'{{"text": "{number}"}}\n' for number in range(50)))
    run_import(uri, Order(sources.files([str(text)], None, "text"), Bytes(), held_out=held_out))
    file = tmp_path / "run.yaml"
    file.write_text(
        BUILT_IN.read_text().replace("file:///FOLDER/data", uri).replace("/FOLDER/", f"{tmp_path}/")
    )
    assert main(["try", str(file), "--folder", str(tmp_path / "new")]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_that_exists_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["try", "--folder", str(tmp_path)]) == 2
    assert "a folder that does not exist is wanted" in capsys.readouterr().err

"""Programs that are told by an operator of another version: each ends so as to be tried again."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from atoll_runtime.contract import ENV_EVALUATION, ENV_RUN_FILE, EXIT_VERSION, brief
from atoll_runtime.evaluator import __main__ as evaluator
from atoll_runtime.syncer import __main__ as syncer


@pytest.mark.parametrize("program", [syncer, evaluator], ids=["syncer", "evaluator"])
def test_a_field_from_a_newer_operator_ends_a_program_with_a_status_of_its_own(
    program: ModuleType,
    make_run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = json.loads(brief(make_run()))
    told["inner"] = {"sharpness": 2}
    (tmp_path / "run.json").write_text(json.dumps(told))
    monkeypatch.setenv(ENV_RUN_FILE, str(tmp_path / "run.json"))
    monkeypatch.setenv(ENV_EVALUATION, "{}")
    monkeypatch.setattr(program, "log_to_stderr", lambda: None)
    assert program.main() == EXIT_VERSION
    assert "VersionMismatch: run.json: inner.sharpness: Extra inputs are not permitted" in caplog.text

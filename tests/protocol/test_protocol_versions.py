"""Processes of one version that are told by those of another, or deal with them: each ends so as to be tried again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll_runtime.contract import ENV_EVALUATION, ENV_RUN_FILE, ENV_UNIT, EXIT_VERSION, brief

pytestmark = pytest.mark.timeout(240)  # processes that import JAX: seconds alone


@pytest.mark.parametrize("role", ["syncer", "evaluator"])
def test_a_field_from_a_newer_operator_ends_a_process_with_a_status_of_its_own(
    role: str, make_run: Any, tmp_path: Path
) -> None:
    told = json.loads(brief(make_run()))
    told["inner"] = {"sharpness": 2}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(told))
    environment = os.environ | {
        ENV_RUN_FILE: str(path),
        ENV_UNIT: "{}",
        ENV_EVALUATION: "{}",
        "JAX_PLATFORMS": "cpu",
    }
    ended = subprocess.run(
        [sys.executable, "-m", f"atoll_runtime.{role}"],
        env=environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert ended.returncode == EXIT_VERSION, ended.stderr
    assert "VersionMismatch: run.json: inner.sharpness: Extra inputs are not permitted" in ended.stderr

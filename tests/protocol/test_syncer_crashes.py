"""The journal's writer is killed at every single change that it makes to its volume (see crash_worker)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(640)  # 10 s alone
def test_a_syncer_killed_at_any_write_point_loses_no_merge_that_was_seen_and_applies_none_twice(
    tmp_path: Path,
) -> None:
    worker = Path(__file__).with_name("crash_worker.py")
    # A process without JAX and without threads: it forks.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, worker, tmp_path], capture_output=True, text=True, env=environment, timeout=600
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    points = figures["points"]
    assert set(points) == {"create", "mkdir", "write", "sync", "rename", "unlink"}
    assert points["rename"] >= 4, "another run's journal set aside, a first segment, two compactions at least"
    assert figures["kills"] == 2 * sum(points.values()) + points["write"]
    assert figures["second_kills"] > figures["kills"] and figures["power_losses"] > 3 * figures["kills"]
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"

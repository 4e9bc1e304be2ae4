"""Decoupled learners learn nearly what data-parallel training does; `test_parity_reduced` has the whole proof."""

from __future__ import annotations

import pytest

from atoll_bench.parity.trials import Trial
from atoll_bench.parity.worker import run_one
from atoll_runtime.data import write_stdlib

RATE = 16e-3
"""Inner learning rate, the best in the tuning of all three methods."""
STEPS = 100
pytestmark = pytest.mark.timeout(1800)  # under a minute of one core


def test_two_and_eight_learners_lose_little_against_data_parallel_training(tmp_path) -> None:
    write_stdlib(data := f"file://{tmp_path}/data")
    plain = run_one(Trial("a", "30k", "data-parallel", 1, "none", 0, STEPS, RATE), data)
    for learners, most in ((2, 0.05), (8, 0.10)):
        found = run_one(Trial("b", "30k", "decoupled", learners, "bf16", 0, STEPS, RATE), data)
        assert found["tokens"] == pytest.approx(plain["tokens"], rel=0.15)
        assert found["loss"] / plain["loss"] - 1 < most, learners

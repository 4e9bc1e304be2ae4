"""The arithmetic of `atoll bench regions`: scaled rates, and the contract of a run."""

from __future__ import annotations

import pytest

from atoll_bench.regions.setting import Setting
from atoll_bench.regions.wan import scale_of


def test_bytes_of_a_step_take_the_same_part_of_it_as_those_of_the_large_model() -> None:
    small, step = 250_000, 0.1
    for gbps in (2, 5):
        large = 12e9 * 16 / (gbps * 1e9) / 5.0
        assert small * 16 / (gbps * 1e9 * scale_of(small, step)) / step == pytest.approx(large)


def test_no_cut_of_the_model_is_made_during_a_training_and_its_seed_is_that_of_model_and_data() -> None:
    run = Setting("file:///data", 100).run(3, "file:///bucket", "syncer")
    assert run.checkpoint.interval_steps > run.target.global_steps == 100
    assert (run.model.seed, run.data.seed) == (3, 3)

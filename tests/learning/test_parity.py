"""The proof of learning on a small scale; `test_parity_reduced` has the whole one."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from atoll_bench.parity.report import markdown
from atoll_bench.parity.trials import Trial
from atoll_bench.parity.worker import run_one
from atoll_runtime.contract import GraceSpec, QuorumSpec
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.simulate.training.world import World, data_parallel, decoupled

pytestmark = pytest.mark.timeout(600)  # seconds alone, most of them the compiler's


def test_eight_learners_lose_little_against_data_parallel_training(setting) -> None:
    eight = replace(setting, paces=(1.0,) * 8, quorum=QuorumSpec(min=8))
    plain, together, untrained = data_parallel(setting, 0), decoupled(eight, 0), World(eight, 0).programs
    assert together.members == 8
    assert plain.loss < 0.6 * untrained.loss(untrained.first)
    assert together.tokens == pytest.approx(plain.tokens, rel=0.05)
    assert together.loss / plain.loss - 1 < 0.03  # 0.5 %; 3.7 % with half the outer rate


def test_learners_that_are_merged_one_by_one_move_the_model_no_further_than_all_together(setting) -> None:
    alone = QuorumSpec(min=1, grace=GraceSpec(fraction=0.0))
    eight = replace(setting, paces=(0.82,) * 4 + (1.0,) * 4, jitter=0.1, quorum=alone)
    plain, turns = data_parallel(setting, 0), decoupled(eight, 0)
    assert turns.members < 2
    assert turns.loss / plain.loss - 1 < 0.15  # 4.5 %; 51 % if each of them moves it in full


def test_what_comes_of_trials_of_both_methods_is_a_table(setting, data, monkeypatch) -> None:
    """With the model of `setting`: those of the proof take a minute to train."""

    def small(trial: Trial, uri: str) -> Setting:
        assert uri == data
        return replace(setting, steps=trial.steps, paces=trial.paces)

    monkeypatch.setattr(Trial, "setting", small)
    trials = (
        Trial("a", "30k", "data-parallel", 1, "none", 0, 12, 1e-2),
        Trial("b", "30k", "decoupled", 2, "int4", 0, 12, 1e-2),
    )
    rows = [asdict(trial) | run_one(trial, data) for trial in trials]
    assert [(row["tokens"], row["global_steps"]) for row in rows] == [(3072, 12), (3072, 11)]
    *_, first, second = markdown(rows, "atoll bench parity").splitlines()
    assert first.startswith("| a | 30k | 6,448 | 0.00 M | data-parallel | ")
    assert second.startswith("| b | 30k | 6,448 | 0.00 M | M=2 int4 K=M | ") and " | +" in second

"""The proof's bookkeeping: which trials run, which results are kept, and what the table shows."""

import itertools
import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from atoll_bench.parity import cases, proof, report, worker
from atoll_bench.parity.sizes import SIZES
from atoll_bench.parity.store import Store
from atoll_bench.parity.trials import Trial
from atoll_cli.errors import CommandError

PLAIN = Trial("a", "30k", "data-parallel", 1, "none", 0, 200, 4e-3)
EIGHT = Trial("b", "30k", "decoupled", 8, "bf16", 0, 200, 4e-3)
FOLDER = Path(__file__).parents[2] / "docs/results"
RESULTS = json.loads((FOLDER / "parity.json").read_text())
SECONDS = 1000 / 8192 / 0.8
"""Time for 1,000 tokens by learners that train 8,192 a second and are away for a fifth of the time."""
DIVERGED = {"loss": None, "tokens": 1000, "error": "inf"}


def found(loss: float) -> dict:
    return {
        "loss": loss,
        "tokens": 1000,
        "merged_tokens": 900,
        "parameters": 30_000,
        "seconds": SECONDS,
        "refused": 1 if loss == 4.2 else 0,
    }


def rate(*_) -> float:
    return 4e-3


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "results" / "parity.json")


def test_every_decoupled_trial_has_a_data_parallel_one_to_be_held_against() -> None:
    for stages in (cases.REDUCED, cases.WHOLE, cases.NAMED, cases.DEVICE):
        every = [trial for stage in stages for trial in cases.trials(stage, "abcdef", rate)]
        plain = {(t.size, t.steps, t.seed) for t in every if t.method == "data-parallel"}
        assert {(t.size, t.steps, t.seed) for t in every} == plain
        assert len(every) == len(set(every))


def test_every_method_of_a_size_has_the_same_tuning_budget_and_a_seed_that_does_not_count() -> None:
    tried = {trial for stage in cases.WHOLE for trial in cases.tuning(stage, cases.WHOLE)}
    assert {trial.seed for trial in tried} == {cases.TUNING_SEED}
    assert cases.TUNING_SEED not in cases.SEEDS
    budgets = Counter((t.size, t.method, t.learners, t.steps) for t in tried)
    assert all(count == len(SIZES[size].rates) for (size, *_), count in budgets.items())
    assert all(t.rate in SIZES[t.size].rates for t in tried)
    assert all(b == 2 * a for size in SIZES.values() for a, b in itertools.pairwise(size.rates))
    for size in {stage.size for stage in cases.WHOLE}:
        mine = [stage for stage in cases.WHOLE if stage.size == size]
        steps = sorted({steps for stage in mine for steps in stage.steps})
        assert all(b == 2 * a for a, b in itertools.pairwise(steps)), "budgets are doubled"


def test_every_size_is_reached_by_its_name() -> None:
    for size in SIZES:
        letters = "".join(stage.cases for stage in cases.stages(size))
        assert set(letters) >= set("d" if size.startswith("moe") else "ab"), size
    assert cases.stages() == cases.WHOLE and cases.stages(device=True) == cases.DEVICE
    assert not {"1m", "350m", "1b", "moe-125m"} & {stage.size for stage in cases.WHOLE + cases.DEVICE}
    assert cases.stages(reduced=True) == cases.REDUCED and cases.stages("90k", reduced=True) == ()


def test_a_slower_fleet_has_fewer_global_steps_for_the_same_tokens() -> None:
    mixed = replace(EIGHT, speeds="mixed", steps=1000).setting("file:///nowhere")
    made = sum(1 / pace for pace in mixed.paces) / mixed.learners
    assert replace(mixed, jitter=0.0).global_steps + 1 == pytest.approx(1000 / made, abs=1)
    assert mixed.global_steps < replace(mixed, jitter=0.0).global_steps  # the slowest learner sets the clock
    assert mixed.batch * mixed.learners == SIZES["30k"].sequences


def test_the_learning_rate_of_least_loss_is_taken_and_what_diverged_is_only_shown(store) -> None:
    best = cases.best_rate(store)
    assert best("30k", 8) in SIZES["30k"].rates
    for value, result in ((1e-3, found(3.0)), (2e-3, found(2.0)), (4e-3, found(2.5)), (8e-3, DIVERGED)):
        store.add(replace(EIGHT, case="tune", rate=value), result)
    assert best("30k", 8) == 2e-3
    store.add(replace(EIGHT, seed=1), DIVERGED)
    assert report.lines(store.rows) == []


def test_a_finished_trial_is_found_again_by_another_process(store) -> None:
    store.add(PLAIN, found(2.0))
    again = Store(store.path)
    assert again.find(PLAIN)["loss"] == 2.0
    assert again.find(EIGHT) is None
    for trial, loss in ((EIGHT, 2.2), (PLAIN, 2.1), (replace(EIGHT, case="tune"), 2.3)):
        again.add(trial, found(loss))
    rows = json.loads(store.path.read_text())
    assert [(row["case"], row["loss"]) for row in rows] == [("a", 2.1), ("b", 2.2)]
    facts = {"size": "30k", "method": "decoupled", "learners": 8, "codec": "bf16", "seed": 0, "tokens": 1000}
    assert rows[1].items() >= facts.items()
    tuning = json.loads(store.path.with_name("parity-tuning.json").read_text())
    assert [row["case"] for row in tuning] == ["tune"], "what chose rates is apart"
    assert len(Store(store.path).rows) == 3
    assert {path.name for path in store.path.parent.iterdir()} == {"parity.json", "parity-tuning.json"}


def test_the_committed_results_are_of_the_cases_and_of_equal_tokens_and_make_the_committed_table() -> None:
    budgets = {
        (row["size"], row["steps"]): row["tokens"] for row in RESULTS if row["method"] == "data-parallel"
    }
    for row in RESULTS:
        assert row["case"] in set("abcdef")
        assert row["method"] in ("data-parallel", "decoupled")
        assert row["codec"] in ("none", "bf16", "int4")
        # The clock's target makes the expected tokens equal to the budget; with jitter (e) and losses (f), about equal.
        near = {"e": 0.02, "f": 0.07}.get(row["case"], 0.003)
        assert row["tokens"] == pytest.approx(budgets[row["size"], row["steps"]], rel=near)
        assert row["command"].startswith("atoll bench parity")
    table = report.markdown(Store(FOLDER / "parity.json").rows, "atoll bench parity --resume")
    assert table == (FOLDER / "parity.md").read_text()


def test_a_gap_is_to_data_parallel_training_of_the_same_seed(store) -> None:
    for seed, (plain, eight) in enumerate(((2.0, 2.2), (4.0, 4.2))):
        store.add(replace(PLAIN, seed=seed), found(plain))
        store.add(replace(EIGHT, seed=seed), found(eight))
    *_, first, second = report.markdown(store.rows, "atoll bench parity").splitlines()
    assert first == "| a | 30k | 30,000 | 0.00 M | data-parallel | 3.0000 ± 1.4142 |  |  |  |  | 2 |"
    cells = "3.2000 ± 1.4142 | +7.50% ± 3.54% | 80% | 90.0% | 1 | 2 |"
    assert second == f"| b | 30k | 30,000 | 0.00 M | M=8 bf16 K=M | {cells}"


@pytest.fixture
def ran(monkeypatch) -> list[Trial]:
    """Trials that the proof starts. Here they end at once. The standard library is that of Python 3.11.9."""
    begun: list[Trial] = []

    def run_all(trials, *_):
        begun.extend(trials)
        return ((trial, found(2.0)) for trial in trials[:1])

    monkeypatch.setattr(proof, "run_all", run_all)
    library = SimpleNamespace(source="standard library of Python 3.11.9")
    monkeypatch.setattr(proof, "write_stdlib", lambda _: library)
    return begun


def prove(folder, reduced=True) -> list[dict]:
    """Rows of a proof that is resumed with the results in its folder."""
    return list(proof.measure(None, "ab", str(folder), resume=True, reduced=reduced, device=False))


def test_results_on_another_text_are_never_resumed_as_this_ones(tmp_path, ran, monkeypatch, capsys) -> None:
    (row,) = [row for row in prove(tmp_path) if row["case"] == "a"]
    assert capsys.readouterr().err.startswith(f"results go to {tmp_path}\n")
    assert row["data"] == "standard library of Python 3.11.9"
    assert row["command"] == "atoll bench parity --json --reduced --size 30k --case a"
    before = len(ran)
    other = SimpleNamespace(source="standard library of Python 3.12.1")
    monkeypatch.setattr(proof, "write_stdlib", lambda _: other)
    with pytest.raises(CommandError, match=r"has results on the .* 3\.11\.9, and this is the .* 3\.12\.1"):
        prove(tmp_path)
    assert len(ran) == before


def test_the_committed_results_go_on_with_another_patch_of_python(tmp_path, ran) -> None:
    for name in ("parity.json", "parity-tuning.json"):
        shutil.copy(FOLDER / name, tmp_path / name)
    prove(tmp_path, reduced=False)
    assert not {Trial.of(row) for row in RESULTS} & set(ran)
    assert (tmp_path / "parity.md").read_text() == (FOLDER / "parity.md").read_text()


def test_what_has_ended_is_kept_when_a_trial_fails(monkeypatch) -> None:
    """In threads, in place of processes: see test_bench_figures."""
    monkeypatch.setattr(worker, "workers", lambda *_: ThreadPoolExecutor(1))
    monkeypatch.setattr(worker, "run_one", lambda trial, _: {"loss": 1 / (1 - trial.seed)})
    results = worker.run_all([PLAIN, replace(EIGHT, seed=1), EIGHT], "", "", 1)
    assert next(results) == (PLAIN, {"loss": 1.0})
    with pytest.raises(ZeroDivisionError):
        list(results)

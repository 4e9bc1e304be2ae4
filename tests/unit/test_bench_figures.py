"""What `atoll bench` takes and prints. Most measurements take minutes: here are their options, their arithmetic and the
cores on which they run."""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from commands import ended

from atoll_bench import link
from atoll_bench.command import FIGURES
from atoll_bench.figures import Phase, rates
from atoll_bench.merge import layout_of
from atoll_bench.regions.decoupled import Setting
from atoll_bench.workers import workers
from atoll_cli.__main__ import main
from atoll_cli.errors import CommandError
from atoll_runtime.protocol.fragments import TensorInfo, build_layout

BENCH = (sys.executable, "-m", "atoll_cli", "bench")


@pytest.mark.parametrize("figure", FIGURES.values(), ids=FIGURES)
def test_a_measurement_takes_the_options_of_its_command(figure) -> None:
    names = (option.name.removeprefix("--").replace("-", "_") for option in figure.options)
    measure = import_module(f"atoll_bench.{figure.module}").measure
    inspect.signature(measure).bind(**dict.fromkeys(names))


def test_a_figure_is_a_json_object_and_a_line_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors = [TensorInfo("layers", (6, 5000), stacked=True, embedding=False)]
    monkeypatch.setattr("atoll_bench.merge.layout_of", lambda _, fragments: build_layout(tensors, fragments))
    monkeypatch.setattr("atoll_bench.merge.COLD", 1 << 20)
    command = ["bench", "merge", "--learners", "2,3", "--fragments", "3"]
    assert main([*command, "--json"]) == 0
    figures: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(figure["codec"], figure["learners"]) for figure in figures] == [
        ("bf16", 2),
        ("bf16", 3),
        ("float32", 2),
        ("float32", 3),
    ]
    for figure in figures:
        assert figure["figure"] == "merge_bytes_per_second"
        assert figure["parameters"] == 30_000
        assert figure["ratio_spread"][0] <= figure["ratio"] <= figure["ratio_spread"][1]
        assert min(figure["value"], figure["copy"]) > 0
    assert main(["bench", "merge", "--learners", "2", "--fragments", "3", "--codec", "bf16"]) == 0
    told = capsys.readouterr().out
    assert told.count("\n") > 1 and json.loads(told).keys() == figures[0].keys()


@pytest.mark.parametrize("figure", ["step", "learner"])
def test_loops_are_not_compared_on_more_devices_than_the_plain_one_uses(figure: str) -> None:
    environment = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    done = ended(*BENCH, figure, environment=environment)
    assert (done.returncode, done.stderr) == (1, "atoll: the plain loop is one device's; 2 are visible\n")


def test_batches_for_which_there_is_no_memory_are_one_sentence() -> None:
    limited = ("sh", "-c", 'ulimit -v 16000000; exec "$@"', "sh", *BENCH)  # a kernel may promise any memory
    done = ended(*limited, "step", "--preset", "250k", "--batch", "1M", "--length", "100k")
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("atoll: bench step: not enough memory: ")


def test_workers_end_with_their_context_and_one_that_is_killed_ends_it_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"^out of memory$"), workers(1, "out of memory") as pool:
        assert pool.submit(abs, -1).result() == 1
        pool.submit(signal.raise_signal, signal.SIGKILL).result()
    with workers(1, "") as pool:
        pool.submit(signal.pause)
        pool.submit(os.mkdir, tmp_path / "begun")
    assert list(tmp_path.iterdir()) == []


def test_an_end_of_a_link_has_more_time_for_more_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "END_SECONDS", 0.01)
    with pytest.raises(CommandError, match="the unit's end of the link took longer than 1 s"):
        link.rates(tmp_path, ("sh", "-c", "exec sleep 60"), cold=1, repeat=98)


def test_the_model_has_at_least_the_parameters_that_were_asked_for() -> None:
    layout = layout_of(64_000_000, 24)
    assert 64_000_000 <= layout.size < 71_000_000
    sizes = [fragment.size for fragment in layout.fragments]
    assert max(sizes) <= 4 / 3 * layout.size / 24


def test_ratios_are_of_pairs_and_of_core_seconds() -> None:
    plain = [Phase(4.0, 2.0), Phase(5.0, 2.0), Phase(9.0, 2.0)]
    found = rates(10, plain, [Phase(5.0, 2.5), Phase(5.0, 2.0), Phase(10.0, 3.0)])
    assert (found.pairs, found.steps) == (3, 30)
    assert (found.plain, found.ours) == (2.0, 2.0)
    assert found.ratio == pytest.approx(0.9)
    assert found.ratio_quartiles == pytest.approx((0.85, 0.95))
    assert found.ratio_of_core_time == pytest.approx(6 / 7.5)


def test_a_figure_of_the_journal_has_the_times_of_merges(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "journal", "--json", "--megabytes", "1", "--merges", "20"]) == 0
    (figure,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert figure["figure"] == "journal_milliseconds" and figure["begin"] > 0
    assert 0 < figure["merge"] <= figure["merge_p99"] <= figure["merge_most"]


def test_a_model_that_does_not_fit_is_refused_with_what_it_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "journal", "--megabytes", "1000000", "--merges", "1"]) == 1
    assert "the journal of 124999999992 parameters needs" in capsys.readouterr().err


def test_no_cut_of_the_model_is_made_during_a_training_and_its_seed_is_that_of_model_and_data() -> None:
    run = Setting("file:///data", 100).run(3, "file:///bucket", "syncer")
    assert run.checkpoint.interval_steps > run.target.global_steps == 100
    assert (run.model.seed, run.data.seed) == (3, 3)

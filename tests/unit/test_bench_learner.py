"""`atoll bench learner`: what it prints and refuses, and its cores. The measurement itself takes minutes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from atoll_bench import cores
from atoll_bench.learner import Cores, LearnerFigure, Setting, placements
from atoll_bench.rates import Pair, rates
from atoll_cli.__main__ import main
from atoll_cli.errors import CommandError

PAIRS = [
    Pair(steps=10, plain=4.0, exchange=5.0, tail=0.5, plain_cores=2.0, exchange_cores=2.5),
    Pair(steps=10, plain=5.0, exchange=5.0, tail=0.0, plain_cores=2.0, exchange_cores=2.0),
    Pair(steps=10, plain=9.0, exchange=10.0, tail=0.5, plain_cores=2.0, exchange_cores=3.0),
]
ONE = cores.usable()[0]


def figures(setting: Setting, places: list[Cores]) -> Iterator[LearnerFigure]:
    for place in places:
        yield LearnerFigure(
            **vars(rates(PAIRS)),
            placement=place.placement,
            learner_cores=place.learner,
            syncer_cores=place.syncer,
            preset=setting.preset,
            parameters=9_540_480,
            batch=setting.batch,
            length=setting.length,
            merges=31,
            cuts=2,
            staleness=2,
            bytes_in=1_500_000,
            bytes_out=2_500_000,
            others=0.25,
        )


def test_ratios_are_of_pairs_of_all_pairs_and_of_core_seconds() -> None:
    found = rates(PAIRS)
    assert (found.pairs, found.steps) == (3, 30)
    assert (found.plain, found.exchange) == (2.0, 2.0)
    assert found.ratio == pytest.approx(0.9)
    assert found.ratio_quartiles == pytest.approx((0.85, 0.95))
    assert found.ratio_of_totals == pytest.approx(18 / 20)
    assert found.ratio_of_core_time == pytest.approx(6 / 7.5)
    assert found.tail == pytest.approx(1 / 20)


def test_a_figure_is_one_json_line_for_each_placement(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atoll_bench.learner.measure", figures)
    monkeypatch.setattr("atoll_bench.cores.usable", lambda: (3, 5))
    assert main(["bench", "learner", "--json", "--preset", "1m", "--batch", "7"]) == 0
    lines: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["placement"], line["learner_cores"], line["syncer_cores"]) for line in lines] == [
        ("apart", [3], [5]),
        ("shared", [3], [3]),
    ]
    for line in lines:
        assert line["figure"] == "inner_steps_per_second"
        assert (line["preset"], line["batch"], line["length"]) == ("1m", 7, 128)
        assert line["ratio_quartiles"][0] <= line["ratio"] <= line["ratio_quartiles"][1]


def test_failed_measurement_is_one_line_and_status_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Iterator[LearnerFigure]:
        raise CommandError("the syncer did not start: port taken")

    monkeypatch.setattr("atoll_bench.learner.measure", fail)
    monkeypatch.setattr("atoll_bench.cores.usable", lambda: (3, 5))
    assert main(["bench", "learner"]) == 1
    assert capsys.readouterr().err == "atoll: the syncer did not start: port taken\n"


def test_learner_and_syncer_share_a_single_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll_bench.cores.usable", lambda: (6,))
    assert placements() == [Cores((6,), (6,))]
    assert placements()[0].placement == "shared"


def test_a_process_is_pinned_with_its_threads() -> None:
    code = (
        "import threading; stop = threading.Event(); threading.Thread(target=stop.wait, daemon=True).start();"
        "print('up', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        cores.pin(process.pid, [ONE])
        threads = os.listdir(f"/proc/{process.pid}/task")
        assert len(threads) == 2
        assert {frozenset(os.sched_getaffinity(int(thread))) for thread in threads} == {frozenset([ONE])}
        process.communicate(b"\n")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--preset", "9m"], "--preset '9m': one of 250k, 1m"),
        (["--batch", "0"], "--batch '0': a whole number from 1"),
        (["--length", "7"], "--length '7': a whole number from 8"),
        (["--pairs", "x"], "--pairs 'x'"),
        (["--seconds", "21"], "--seconds '21': a whole number from 1 to 20"),
        (["--checkpoint-interval", ""], "--checkpoint-interval ''"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_the_option_and_status_2(
    options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "learner", *options]) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1

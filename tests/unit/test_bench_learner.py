"""`atoll bench learner`: what it prints and refuses, and its cores. The measurement itself takes minutes."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from atoll_bench import cores, learner
from atoll_bench.learner import LearnerFigure
from atoll_bench.rates import Phase, rates
from atoll_cli.__main__ import main

PLAIN = [Phase(4.0, 2.0), Phase(5.0, 2.0), Phase(9.0, 2.0)]
OURS = [Phase(5.0, 2.5), Phase(5.0, 2.0), Phase(10.0, 3.0)]


def test_ratios_are_of_pairs_and_of_core_seconds() -> None:
    found = rates(10, PLAIN, OURS)
    assert (found.pairs, found.steps) == (3, 30)
    assert (found.plain, found.ours) == (2.0, 2.0)
    assert found.ratio == pytest.approx(0.9)
    assert found.ratio_quartiles == pytest.approx((0.85, 0.95))
    assert found.ratio_of_core_time == pytest.approx(6 / 7.5)


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_figure_is_a_json_object(
    form: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = inspect.signature(learner.measure)

    def figures(**options: Any) -> Iterator[LearnerFigure]:
        taken.bind(**options)
        known = {name: options[name] for name in ("preset", "batch", "length", "gbps")}
        found = {"cores": 2, "parameters": 9_540_480, "merges": 31, "cuts": 2, "codec": "bf16", "load": 0.6}
        yield LearnerFigure(**vars(rates(10, PLAIN, OURS)), **known, **found)

    monkeypatch.setattr("atoll_bench.learner.measure", figures)
    assert main(["bench", "learner", "--preset", "1m", "--batch", "7", *form]) == 0
    told = capsys.readouterr().out
    figure = json.loads(told)
    assert (told.count("\n") == 1) == bool(form)
    assert (figure["figure"], figure["preset"], figure["batch"]) == ("inner_steps_per_second", "1m", 7)
    assert figure["ratio_quartiles"][0] <= figure["ratio"] <= figure["ratio_quartiles"][1]


def test_a_process_is_pinned_with_its_threads() -> None:
    code = (
        "import threading; stop = threading.Event(); threading.Thread(target=stop.wait, daemon=True).start();"
        "print('up', flush=True); input()"
    )
    one = cores.usable()[0]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        cores.pin(process.pid, [one])
        threads = os.listdir(f"/proc/{process.pid}/task")
        assert len(threads) == 2
        assert {frozenset(os.sched_getaffinity(int(thread))) for thread in threads} == {frozenset([one])}
        process.communicate(b"\n")

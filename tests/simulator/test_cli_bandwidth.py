"""`atoll simulate bandwidth`, as a script sees it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from atoll_cli.__main__ import main

CASE = ("--method", "decoupled", "--params", "5e9", "--step-time", "1", "--bits", "16", "--sites", "8")


def test_one_case_is_one_object_with_the_question_and_the_answer(ask: Any) -> None:
    (row,) = ask("bandwidth", *CASE)
    assert row["gbps_peak"] == pytest.approx(5 / 3)
    assert row["gbps_mean"] == pytest.approx(10 / 3)
    assert row["gbps_link"] == pytest.approx(10 / 3)
    assert row["gbps_both_directions"] == pytest.approx(10 / 3)
    assert (row["method"], row["params"], row["step_seconds"], row["bits"]) == ("decoupled", 5e9, 1, 16)
    assert (row["sites"], row["interval"], row["fragments"], row["overlap"]) == (8, 24, 24, 2)


@pytest.mark.parametrize(
    ("method", "bits", "share", "published"),
    [("data-parallel", "16", "0.5", 86.8), ("streaming-overlap", "4", "0.99", 3.0)],
)
def test_a_cell_of_the_published_table_is_asked_for_with_options(
    ask: Any, method: str, bits: str, share: str, published: float
) -> None:
    case = ("--params", "1B", "--step-time", "0.1", "--sites", "2", "--bits", bits, "--utilization", share)
    (row,) = ask("bandwidth", "--method", method, *case)
    assert published / 1.207 < row["gbps_peak"] < published * 1.207
    assert row["gbps_mean"] <= row["gbps_peak"]


def test_the_options_of_the_schedule_reach_the_answer(ask: Any) -> None:
    (row,) = ask("bandwidth", *CASE, "--interval", "48", "--fragments", "12", "--overlap", "4")
    assert row["gbps_peak"] == pytest.approx(5 * 16 / (12 * 4))
    assert row["gbps_mean"] == pytest.approx(5 * 16 / 48)


def test_a_preset_brings_its_own_parameters_and_its_largest_fragment(ask: Any) -> None:
    (row,) = ask("bandwidth", "--method", "decoupled", "--model", "1b", "--step-time", "1")
    assert row["params"] == pytest.approx(1e9, rel=0.15)
    assert row["largest_fragment"] > 1 / 24
    assert row["gbps_peak"] == pytest.approx(row["largest_fragment"] * row["params"] * 16 / 2 / 1e9)


def test_links_are_judged_one_row_each(ask: Any) -> None:
    case = ("--method", "decoupled", "--params", "12B", "--sites", "4", "--link-gbps", "2,5")
    thin, thick = ask("bandwidth", *case)
    assert (thin["link_gbps"], thick["link_gbps"]) == (2, 5)
    assert thin["hidden_step_seconds"] == pytest.approx(4)
    assert thick["hidden_step_seconds"] == pytest.approx(1.6)
    assert min(thin["speedup_data_parallel"], thick["speedup_data_parallel"]) > 20
    (pressed,) = ask("bandwidth", *case[:-1], "2", "--step-time", "1")
    assert (pressed["link_utilization"], pressed["interval_reached"]) == (1, pytest.approx(96))


def test_a_case_can_be_drawn(ask: Any, tmp_path: Path) -> None:
    ask("bandwidth", *CASE, "--plot", tmp_path / "case.svg")
    assert "decoupled, 16 bits" in (tmp_path / "case.svg").read_text()


def test_layers_that_cannot_be_dealt_out_evenly_are_told_as_rounded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["simulate", "bandwidth", "--method", "streaming", *CASE[2:], "--fragments", "10", "--layers"]
    assert main([*asked, "36"]) == 0
    assert (
        "Computed with 40 layers, the same number in each fragment; the model has 36."
        in capsys.readouterr().out
    )
    assert main([*asked, "40"]) == 0
    assert "Computed with" not in capsys.readouterr().out

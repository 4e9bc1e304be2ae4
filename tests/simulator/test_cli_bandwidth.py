"""`atoll simulate bandwidth`, as a script sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from atoll_cli.__main__ import main

CASE = ("--method", "decoupled", "--params", "5e9", "--step-time", "1", "--bits", "16", "--sites", "8")


def ask(*arguments: str) -> int:
    return main(["simulate", "bandwidth", *arguments])


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert ask(*arguments, "--json") == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_one_case_is_one_object_with_the_question_and_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, *CASE)
    assert row["gbps_peak"] == pytest.approx(5 / 3)
    assert row["gbps_mean"] == pytest.approx(10 / 3)
    assert row["gbps_link"] == pytest.approx(10 / 3)
    assert row["gbps_both_directions"] == pytest.approx(10 / 3)
    assert (row["method"], row["params"], row["step_seconds"], row["bits"]) == ("decoupled", 5e9, 1, 16)
    assert (row["sites"], row["interval"], row["fragments"], row["overlap"]) == (8, 24, 24, 2)


@pytest.mark.parametrize(
    ("method", "bits", "share", "published"),
    [
        pytest.param("data-parallel", "16", "0.5", 86.8, id="data-parallel"),
        pytest.param("diloco", "16", "0.8", 6.2, id="diloco"),
        pytest.param("streaming", "16", "0.95", 16, id="streaming"),
        pytest.param("streaming-overlap", "16", "0.99", 11, id="overlap"),
        pytest.param("streaming-overlap", "4", "0.99", 3.0, id="overlap-fp4"),
    ],
)
def test_a_cell_of_the_published_table_is_asked_for_with_options(
    capsys: pytest.CaptureFixture[str], method: str, bits: str, share: str, published: float
) -> None:
    case = ("--params", "1B", "--step-time", "0.1", "--sites", "2", "--bits", bits, "--utilization", share)
    (row,) = rows(capsys, "--method", method, *case)
    assert published / 1.207 < row["gbps_peak"] < published * 1.207
    assert row["gbps_mean"] <= row["gbps_peak"]


def test_the_options_of_the_schedule_reach_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = rows(capsys, *CASE, "--interval", "48", "--fragments", "12", "--overlap", "4")
    assert row["gbps_peak"] == pytest.approx(5 * 16 / (12 * 4))
    assert row["gbps_mean"] == pytest.approx(5 * 16 / 48)


def test_data_parallel_over_decoupled_is_the_published_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    (wide,) = rows(capsys, "--method", "data-parallel", *CASE[2:], "--utilization", "0.95")
    (narrow,) = rows(capsys, *CASE, "--bits", "4")
    assert wide["gbps_peak"] == pytest.approx(198, rel=0.1)
    assert narrow["gbps_link"] == pytest.approx(0.84, rel=0.1)
    assert wide["gbps_peak"] / narrow["gbps_link"] == pytest.approx(235.7, rel=0.1)


def test_a_preset_brings_its_own_parameters_and_its_largest_fragment(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (row,) = rows(capsys, "--method", "decoupled", "--model", "1b", "--step-time", "1")
    assert row["params"] == pytest.approx(1e9, rel=0.15)
    assert row["largest_fragment"] > 1 / 24
    assert row["gbps_peak"] == pytest.approx(row["largest_fragment"] * row["params"] * 16 / 2 / 1e9)


def test_links_are_judged_one_row_each(capsys: pytest.CaptureFixture[str]) -> None:
    case = ("--method", "decoupled", "--params", "12B", "--sites", "4", "--link-gbps", "2,5")
    thin, thick = rows(capsys, *case)
    assert (thin["link_gbps"], thick["link_gbps"]) == (2, 5)
    assert thin["hidden_step_seconds"] == pytest.approx(4)
    assert thick["hidden_step_seconds"] == pytest.approx(1.6)
    assert min(thin["speedup_data_parallel"], thick["speedup_data_parallel"]) > 20
    (pressed,) = rows(capsys, *case[:-1], "2", "--step-time", "1")
    assert (pressed["link_utilization"], pressed["interval_reached"]) == (1, pytest.approx(96))


def test_a_case_can_be_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert ask(*CASE, "--plot", str(tmp_path / "case.svg")) == 0
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

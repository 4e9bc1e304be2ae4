"""`atoll simulate bandwidth`, as a script sees it."""

from __future__ import annotations

from typing import Any

import pytest

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

"""`atoll simulate heterogeneity` and `atoll simulate scavenge`, as they are called."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from atoll_cli.__main__ import main

ASKED = ["--speeds", "1,1,1,1,1.18,1.18,1.18,1.18", "--jitter", "0.1"]


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    assert main(["simulate", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_published_setting_is_met_within_four_points(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(capsys, "heterogeneity", "--steps", "400")
    assert [(row["quorum"], row["grace"]) for row in found] == [(8, "auto"), (1, "0"), (1, "auto")]
    assert [row["published_goodput"] for row in found] == [0.84, 1.0, 1.0]
    for row in found:
        assert row["goodput"] == pytest.approx(row["published_goodput"], abs=0.04)
    assert found[1]["mean_members"] < 2 < 7.5 < found[2]["mean_members"]
    assert found[1]["merged_share"] < 0.3 < 0.9 < found[2]["merged_share"]


def test_a_question_of_ones_own_gives_one_object_whose_shares_add_up(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["heterogeneity", *ASKED, "--quorum", "1", "--grace", "0", "--steps", "200", "--seed", "7"]
    (row,) = rows(capsys, *arguments)
    assert row["goodput"] == 1
    assert row["published_goodput"] is None
    assert row["merged_share"] + sum(row["discarded"].values()) + row["in_flight"] == pytest.approx(1)
    assert rows(capsys, *arguments) == [row]
    assert rows(capsys, *arguments[:-1], "8") != [row]


def test_learners_wait_for_merges_only_where_all_must_be_in_or_when_asked_to(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def one(*more: str) -> dict:
        return rows(capsys, "heterogeneity", "--speeds", "1,1.5", "--jitter", "0", "--steps", "100", *more)[0]

    assert one("--quorum", "1")["wait"] == "never"
    waiting = one("--quorum", "2")
    assert waiting["wait"] == "published"
    assert waiting["goodput"] == pytest.approx((1 / 1.5 + 1) / 2, abs=0.02)
    assert one("--quorum", "2", "--wait", "never")["goodput"] == 1


def test_step_times_are_relative_to_the_fastest(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--jitter", "0", "--steps", "100"]
    slow, fast = (
        rows(capsys, "heterogeneity", "--speeds", speeds, *arguments)[0] for speeds in ("2,3", "1,1.5")
    )
    assert slow | {"speeds": None} == fast | {"speeds": None}


def test_scavenging_stands_beside_the_published_wall_clock(capsys: pytest.CaptureFixture[str]) -> None:
    found = {(row["method"], row["extra"]): row for row in rows(capsys, "scavenge")}
    assert len(found) == 6
    for row in found.values():
        assert row["relative_time"] == pytest.approx(row["published"], abs=0.02)
    assert found["data-parallel", 1]["relative_time"] > 1 > found["data-parallel", 3]["relative_time"]
    times = [found["decoupled", extra]["relative_time"] for extra in (0, 1, 3)]
    assert times == sorted(times, reverse=True) and times[0] == 1


def test_a_scavenging_setting_of_ones_own_is_not_compared_with_the_paper(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = rows(capsys, "scavenge", "--learners", "2", "--extra", "0.5", "--night-hours", "8")
    assert {row["learners_night"] for row in found} == {2, 3}
    assert {row["published"] for row in found} == {None}


@pytest.mark.parametrize("question", [["heterogeneity", "--steps", "60"], ["scavenge"]], ids=lambda q: q[0])
def test_table_csv_and_plot_have_the_same_rows(
    question: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sheet, plot = tmp_path / "rows.csv", tmp_path / "rows.png"
    assert main(["simulate", *question, "--csv", str(sheet), "--plot", str(plot)]) == 0
    printed = capsys.readouterr().out
    with sheet.open(encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert len(written) == (3 if question[0] == "heterogeneity" else 6)
    assert "published" in printed and len(printed.splitlines()) >= len(written) + 2
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "option", "wanted"),
    [
        (["heterogeneity", "--speeds", "1,fast"], "--speeds 'fast'", "a number from 0.01 to 100"),
        (["heterogeneity", "--speeds", "1,0"], "--speeds '0'", "a number from 0.01 to 100"),
        (["heterogeneity", "--speeds", ",".join(["1"] * 200)], "--speeds", "at most 128"),
        (["heterogeneity", "--speeds", ""], "--speeds ''", "a number"),
        (["heterogeneity", "--speeds", "1,50"], "--speeds '1,50'", "at most 20"),
        (["heterogeneity", "--quorum", "9"], "--quorum '9'", "at most the 8 learners"),
        (["heterogeneity", "--quorum", "0"], "--quorum '0'", "from 1"),
        (["heterogeneity", "--jitter", "2"], "--jitter '2'", "from 0 to 0.5"),
        (["heterogeneity", "--grace", "1"], "--grace '1'", "one of 0, auto"),
        (["heterogeneity", "--wait", "yes"], "--wait 'yes'", "one of published, never"),
        (["heterogeneity", "--steps", "10"], "--steps '10'", "from 48"),
        (["heterogeneity", "--fragments", "25"], "--fragments '25'", "from 1 to 24"),
        (["heterogeneity", "--seed", "-1"], "--seed '-1'", "from 0"),
        (["scavenge", "--extra", "0.3"], "--extra '0.3'", "no whole number"),
        (["scavenge", "--night-hours", "0"], "--night-hours '0'", "at most 24"),
        (["scavenge", "--join", "soon"], "--join 'soon'", "such as 90s"),
        (["scavenge", "--change-every", "1s"], "--change-every '1s'", "at least 1m"),
        (["scavenge", "--work-hours", "nan"], "--work-hours 'nan'", "at most 10000"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_a_bad_option_ends_with_2_and_one_line_that_names_it(
    arguments: list[str], option: str, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert option in told.err and wanted in told.err

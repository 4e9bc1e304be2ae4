"""What all questions of `atoll simulate` share: how values are read, and how an answer leaves."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

import pytest

from atoll_cli import values
from atoll_cli.__main__ import main
from atoll_cli.errors import CommandError, UsageError
from atoll_cli.simulate.output import Column, Report, deliver

COLUMNS = (Column("name", "NAME"), Column("share", "SHARE", lambda share: f"{100 * share:.0f} %"))
ROWS = ({"name": "one", "share": 0.5, "parts": [1, 2]}, {"name": "two", "share": None, "parts": []})
REPORT = Report("Shares", COLUMNS, ROWS, notes=("Nothing is assumed.",))


def drawn(report: Report = REPORT) -> Report:
    return Report(
        report.title, report.columns, report.rows, draw=lambda figure: figure.subplots().plot([0, 1], [1, 0])
    )


def options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": False, "csv": None, "plot": None, **given})


@pytest.mark.parametrize(
    ("text", "meant"), [("8", 8), ("150k", 150_000), ("1.2M", 1_200_000), ("2e3", 2000), ("1B", 10**9)]
)
def test_a_count_is_a_whole_number_with_a_prefix(text: str, meant: int) -> None:
    assert values.count("--chips", text) == meant


@pytest.mark.parametrize(
    ("text", "meant"),
    [("90", 90.0), ("90s", 90.0), ("15m", 900.0), ("12h", 43_200.0), ("1y", 365.25 * 86_400)],
)
def test_a_time_has_a_unit_or_is_seconds(text: str, meant: float) -> None:
    assert values.seconds("--mtbi", text) == meant


@pytest.mark.parametrize("text", ["", "x", "1.5", "0", "-3", "nan", "inf", "1e13", "5Q", "k"])
def test_a_bad_count_is_one_line_that_names_option_and_value(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        values.count("--chips", text)
    assert str(refused.value).startswith(f"--chips {text!r}: a whole number from 1 to ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["", "0", "0s", "-1h", "nan", "inf", "h", "1 week"])
def test_a_bad_time_says_what_a_time_looks_like(text: str) -> None:
    with pytest.raises(UsageError, match=r"--mtbi .*: a time above 0 is wanted, such as 90s"):
        values.seconds("--mtbi", text)


def test_a_number_keeps_to_its_range_and_excludes_its_end_where_told_to() -> None:
    assert values.number("--jitter", "0") == 0.0
    with pytest.raises(UsageError, match=r"--utilization '1.2': a number from 0 to 1 is wanted"):
        values.number("--utilization", "1.2", most=1)
    with pytest.raises(UsageError, match=r"--step-time '0': a number above 0 is wanted"):
        values.number("--step-time", "0", above=True)
    with pytest.raises(UsageError, match=r"a number above 0 and at most 1000000 is wanted"):
        values.number("--link-gbps", "0", most=1e6, above=True)


def test_a_list_is_refused_for_one_bad_member_and_for_its_length() -> None:
    assert values.numbers("--speeds", "1, 1.18,2") == [1.0, 1.18, 2.0]
    with pytest.raises(UsageError, match=r"--speeds '': a number"):
        values.numbers("--speeds", "1,,2")
    with pytest.raises(UsageError, match=r"--speeds: 4097 values; at most 4096 are taken"):
        values.numbers("--speeds", ",".join(["1"] * 4097))


def test_a_word_is_one_of_those_offered() -> None:
    assert values.choice("--method", "rigid", ("rigid", "elastic")) == "rigid"
    with pytest.raises(UsageError, match="--method 'Rigid': one of rigid, elastic is wanted"):
        values.choice("--method", "Rigid", ("rigid", "elastic"))


def test_the_table_has_title_cells_as_shown_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(REPORT, options())
    assert capsys.readouterr().out.splitlines() == [
        "Shares",
        "NAME  SHARE",
        "one   50 %",
        "two   -",
        "Nothing is assumed.",
    ]


def test_json_is_a_line_a_row_with_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(REPORT, options(json=True))
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == list(ROWS)


def test_json_of_an_answer_that_is_one_object_is_that_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("Shares", COLUMNS, ROWS, document={"rows": list(ROWS), "units": 3})
    deliver(report, options(json=True))
    assert json.loads(capsys.readouterr().out) == {"rows": list(ROWS), "units": 3}


def test_what_belongs_above_the_table_stands_there(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(Report("Shares", COLUMNS, ROWS, above=("Of two.",)), options())
    assert capsys.readouterr().out.splitlines()[:3] == ["Shares", "Of two.", "NAME  SHARE"]


def test_csv_has_every_key_and_lists_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deliver(REPORT, options(csv=tmp_path / "out.csv"))
    with (tmp_path / "out.csv").open(newline="") as file:
        assert list(csv.DictReader(file)) == [
            {"name": "one", "share": "0.5", "parts": "[1, 2]"},
            {"name": "two", "share": "", "parts": "[]"},
        ]
    assert capsys.readouterr().out.startswith("Shares\n")


@pytest.mark.parametrize(("suffix", "begins"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_a_plot_is_of_the_format_that_its_name_says(tmp_path: Path, suffix: str, begins: bytes) -> None:
    deliver(drawn(), options(plot=tmp_path / f"out.{suffix}"))
    assert (tmp_path / f"out.{suffix}").read_bytes().startswith(begins)


def test_a_plot_in_another_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--plot .*: a name that ends in .png, .pdf or .svg is wanted"):
        deliver(drawn(), options(plot=tmp_path / "out.doc", csv=tmp_path / "out.csv"))
    with pytest.raises(UsageError, match="there is nothing to draw for this question"):
        deliver(REPORT, options(plot=tmp_path / "out.png", csv=tmp_path / "out.csv"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["csv", "plot"])
def test_a_folder_that_is_not_there_is_told_before_anything_is_simulated(
    tmp_path: Path, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "none" / "out.png"
    monkeypatch.setattr("atoll_cli.simulate.scavenge.answer", unreachable)
    assert main(["simulate", "scavenge", f"--{option}", str(path)]) == 2
    told = capsys.readouterr()
    assert told.err == f"atoll: --{option} '{path}': there is no folder {path.parent}\n"
    assert told.out == ""


def unreachable(_: argparse.Namespace) -> int:
    raise AssertionError("simulated all the same")


def test_a_file_that_cannot_be_written_after_all_is_named_with_its_option() -> None:
    with pytest.raises(CommandError, match=r"--csv '/dev/full': No space left on device") as refused:
        deliver(drawn(), options(csv=Path("/dev/full")))
    assert refused.value.status == 1

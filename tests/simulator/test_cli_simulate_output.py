"""What all questions of `atoll simulate` share: how values are read, and how an answer leaves."""

from __future__ import annotations

import argparse
import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

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


def test_values_are_read_with_their_prefixes_and_units() -> None:
    counts = [values.count("--chips", text) for text in ("8", "150k", "1.2M", "2e3", "1B")]
    assert counts == [8, 150_000, 1_200_000, 2000, 10**9]
    times = [values.seconds("--mtbi", text) for text in ("90", "90s", "15m", "12h", "1y")]
    assert times == [90.0, 90.0, 900.0, 43_200.0, 365.25 * 86_400]
    assert values.number("--jitter", "0") == 0.0
    assert values.numbers("--speeds", "1, 1.18,2") == [1.0, 1.18, 2.0]
    assert values.choice("--method", "rigid", ("rigid", "elastic")) == "rigid"


BAD = (
    *(
        (values.count, text, "a whole number from 1 to ")
        for text in ("", "x", "1.5", "0", "-3", "inf", "1e13", "k")
    ),
    *(
        (values.seconds, text, "a time above 0 is wanted, such as 90s")
        for text in ("", "0s", "-1h", "nan", "1 week")
    ),
    (partial(values.number, most=1), "1.2", "a number from 0 to 1 is wanted"),
    (partial(values.number, above=True), "0", "a number above 0 is wanted"),
    (partial(values.number, most=1e6, above=True), "0", "a number above 0 and at most 1000000 is wanted"),
    (partial(values.choice, choices=("rigid", "elastic")), "Rigid", "one of rigid, elastic is wanted"),
)


@pytest.mark.parametrize(("read", "text", "words"), BAD)
def test_a_bad_value_is_one_line_that_names_option_and_value(read: Any, text: str, words: str) -> None:
    with pytest.raises(UsageError) as refused:
        read("--option", text)
    assert str(refused.value).startswith(f"--option {text!r}: {words}")
    assert "\n" not in str(refused.value)


def test_a_list_is_refused_for_one_bad_member_and_for_its_length() -> None:
    with pytest.raises(UsageError, match=r"--speeds '': a number"):
        values.numbers("--speeds", "1,,2")
    with pytest.raises(UsageError, match=r"--speeds: 4097 values; at most 4096 are taken"):
        values.numbers("--speeds", ",".join(["1"] * 4097))


def test_the_table_has_title_cells_as_shown_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    deliver(REPORT, options())
    assert capsys.readouterr().out.splitlines() == [
        "Shares",
        "NAME  SHARE",
        "one   50 %",
        "two   -",
        "Nothing is assumed.",
    ]


def test_json_of_an_answer_that_is_one_object_is_that_object(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("Shares", COLUMNS, ROWS, document={"rows": list(ROWS), "units": 3})
    deliver(report, options(json=True))
    assert json.loads(capsys.readouterr().out) == {"rows": list(ROWS), "units": 3}


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

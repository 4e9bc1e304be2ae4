"""`make figures`: what it writes, and that what is kept in docs/results is what it writes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from figures import FOLDER, commands, write

from atoll_cli.__main__ import main

RESULTS = Path(__file__).resolve().parents[2] / FOLDER
FIGURES = {command[1]: command for command in commands(RESULTS / "README.md")}
LONG = ("heterogeneity",)
"""40 s of CPU; `make test` asks for 48 of its 1,000 steps, below."""


def alike(text: str) -> str:
    """Nine digits of each fraction: the last ones may be another machine's."""
    return re.sub(r"\d+\.\d+(?:e-?\d+)?", lambda found: f"{float(found[0]):.9g}", text)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in FIGURES]
)
def test_what_is_kept_is_what_the_code_writes_today(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(RESULTS.parents[1])  # a figure's file is named from the root of a checkout
    assert write(FIGURES[name], tmp_path) == 0
    file = f"{name}.json"
    assert alike((tmp_path / file).read_text()) == alike((RESULTS / file).read_text())
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in RESULTS.glob(f"{name}.*")}


def kept(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def test_what_is_kept_meets_what_was_published() -> None:
    cells = [row for row in kept("goodput") if row["published_goodput"] is not None]
    assert len(kept("goodput")) == 30 and len(cells) == 12
    assert sum(row["calibrates"] is not None for row in cells) == 3
    for row in cells:
        assert row["error_points"] == pytest.approx(100 * (row["goodput"] - row["published_goodput"]))
        assert abs(row["error_points"]) < (4 if row["calibrates"] is None else 1.5)
    assert fmean(abs(row["error_points"]) for row in cells) < 2
    unequal = kept("heterogeneity")
    assert [(row["quorum"], row["grace"]) for row in unequal] == [(8, "auto"), (1, "0"), (1, "auto")]
    for row in unequal:
        assert row["goodput"] == pytest.approx(row["published_goodput"], abs=0.02)
    assert unequal[1]["mean_members"] < 2 < 7.5 < unequal[2]["mean_members"]
    assert unequal[1]["merged_share"] < 0.5 < 0.9 < unequal[2]["merged_share"]
    night = {(row["method"], row["extra"]): row["relative_time"] for row in kept("scavenge")}
    for row in kept("scavenge"):
        assert row["relative_time"] == pytest.approx(row["published"], abs=0.02)
    assert night["data-parallel", 1] > 1 > night["data-parallel", 3]
    assert night["decoupled", 0] == 1 > night["decoupled", 1] > night["decoupled", 3]


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("goodput --days 0.1", ("12 published cells: mean error", "repair 55")),
        ("bandwidth", ("8 sites, data-parallel", "49 of 50 cells", "0.46, largest 1.04", "largest 5.0 %")),
        ("scavenge", ("PUBLISHED", "one each 23 min")),
        ("heterogeneity --steps 48", ("PUBLISHED GOODPUT", "Learners of this runtime never wait")),
    ],
)
def test_without_options_a_question_prints_the_published_table(
    question: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *question.split()]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert all(each in printed for each in words)

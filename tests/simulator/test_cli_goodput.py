"""`atoll simulate goodput`: what it prints, what it draws, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from atoll_cli.__main__ import main

QUICK = ("--days", "0.1", "--repeats", "4")


def ask(capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    assert main(["simulate", "goodput", *options, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_one_fleet_is_one_object_with_all_that_it_rests_on(capsys: pytest.CaptureFixture[str]) -> None:
    (answer,) = ask(
        capsys, "--method", "decoupled", "--chips", "1.2M", "--learners", "8", "--mtbi", "1y", *QUICK
    )
    low, high = answer["interval"]
    assert 0.8 < low < answer["goodput"] < high < 0.95
    assert answer["uptime"] > 0.999
    asked = {
        name: answer[name] for name in ("method", "chips", "learners", "mtbi", "days", "seed", "repeats")
    }
    assert asked == {
        "method": "decoupled", "chips": 1_200_000, "learners": 8, "mtbi": 31_557_600.0, "days": 0.1, "seed": 0,
        "repeats": 4,
    }  # fmt: skip
    assert {"notice", "pause", "patience", "repair", "slice_chips", "quorum"} < answer["constants"].keys()
    assert sum(answer["share"].values()) == pytest.approx(1.0)


def test_the_same_seed_prints_the_same_bytes_and_another_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    one, same, other = (
        ask(capsys, "--method", "elastic", "--chips", "300k", "--seed", seed, *QUICK) for seed in "445"
    )
    assert one == same
    assert one[0]["goodput"] != other[0]["goodput"]


def test_without_options_every_published_cell_stands_beside_ours(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = ("--csv", str(tmp_path / "table.csv"), "--plot", str(tmp_path / "table.png"))
    rows = ask(capsys, *QUICK, *files)
    known = [row for row in rows if row["published"] is not None]
    assert (len(rows), len(known)) == (30, 12)
    assert sum(row["calibrates"] is not None for row in rows) == 3
    for row in known:
        assert row["error_points"] == pytest.approx(100 * (row["goodput"] - row["published"]))
    with (tmp_path / "table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 30
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")


def test_the_table_says_how_far_off_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "goodput", *QUICK]) == 0
    shown = capsys.readouterr().out
    assert "12 published cells: mean error" in shown
    assert "repair 55" in shown


def test_recovery_options_change_the_answer_the_way_they_should(capsys: pytest.CaptureFixture[str]) -> None:
    def goodput(*options: str) -> float:
        value: float = ask(capsys, "--chips", "1.2M", "--learners", "8", *QUICK, *options)[0]["goodput"]
        return value

    base, unit = goodput(), goodput("--method", "unit")
    assert goodput("--resize", "60s") < base < goodput("--resize", "5")
    assert goodput("--patience", "1h") > base > goodput("--patience", "0")
    assert goodput("--mtbi", "26w") < base < goodput("--mtbi", "2y")
    assert goodput("--quorum", "8") < base
    assert unit < goodput("--method", "unit", "--seed-source", "peer", "--params", "5B")
    assert unit > goodput("--method", "unit", "--params", "70B", "--seed-gbps", "100")
    assert unit < goodput("--method", "unit", "--spares", "1")
    assert unit < goodput("--method", "unit", "--in-place", "10")
    assert unit > goodput("--method", "unit", "--repair", "10m")


def test_grace_takes_in_what_a_quorum_of_one_would_leave_and_costs_no_goodput(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def merged(*options: str) -> tuple[float, float]:
        row = ask(capsys, "--chips", "1.2M", "--speeds", "1,1.18", "--jitter", "0.1", *QUICK, *options)[0]
        return row["merged_share"], row["goodput"]

    (alone, useful), (waited, same) = merged("--grace", "0"), merged("--grace", "auto")
    # A unit that a round leaves out keeps its work, and is in a later one.
    assert alone < 0.75 and waited > 0.9 and useful == same
    assert ask(capsys, "--method", "elastic", *QUICK)[0]["merged_share"] is None


@pytest.mark.parametrize("method", ["rigid", "elastic"])
def test_a_single_learner_needs_no_number_and_takes_no_other(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask(capsys, "--method", method, "--chips", "150k", *QUICK)[0]["learners"] == 1
    assert main(["simulate", "goodput", "--method", method, "--learners", "2"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ("--method", "magic"),
        ("--chips", "0"),
        ("--chips", "many"),
        ("--learners", "0"),
        ("--learners", "2.5"),
        ("--learners", "16", "--chips", "8"),
        ("--mtbi", "0"),
        ("--mtbi=-1y",),
        ("--mtbi", "nan"),
        ("--days", "0", "--method", "rigid"),
        ("--days", "36k", "--method", "rigid"),
        ("--seed", "-1", "--method", "rigid"),
        ("--repeats", "1", "--method", "rigid"),
        ("--repair", "soon", "--method", "rigid"),
        ("--resize", "-3", "--method", "rigid"),
        ("--quorum", "9", "--learners", "8"),
        ("--quorum", "2"),
        ("--grace", "2", "--learners", "8"),
        ("--grace", "0", "--method", "elastic"),
        ("--grace", "0"),
        ("--speeds", "1,0", "--method", "rigid"),
        ("--jitter", "2", "--method", "unit"),
        ("--jitter", "0.1", "--method", "rigid"),
        ("--resize", "1m", "--method", "unit"),
        ("--slice", "0", "--method", "rigid"),
        ("--spares", "-1", "--method", "rigid"),
        ("--seed-source", "friend", "--method", "unit"),
        ("--seed-gbps", "0", "--method", "unit"),
        ("--params", "x", "--method", "unit"),
        ("--in-place", "x", "--method", "unit"),
        ("--checkpoint", "1h", "--method", "decoupled"),
        ("--checkpoint", "1h", "--method", "elastic"),
        ("--patience", "1h", "--method", "unit"),
        ("--mtbi", "1w"),
    ],
    ids=" ".join,
)
def test_a_bad_value_is_one_line_that_names_the_option(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "goodput", *options]) == 2
    error = capsys.readouterr().err
    assert options[0].split("=")[0] in error
    assert error.count("\n") == 1

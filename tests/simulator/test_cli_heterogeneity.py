"""`atoll simulate heterogeneity` and `atoll simulate scavenge`, as they are called."""

from __future__ import annotations

import json

import pytest

from atoll_cli.__main__ import main

ASKED = ["--speeds", "1,1,1,1,1.18,1.18,1.18,1.18", "--jitter", "0.1"]


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict]:
    assert main(["simulate", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


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


def test_a_scavenging_setting_of_ones_own_is_not_compared_with_the_paper(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = rows(capsys, "scavenge", "--learners", "2", "--extra", "0.5", "--night-hours", "8")
    assert {row["learners_night"] for row in found} == {2, 3}
    assert {row["published"] for row in found} == {None}

"""`atoll simulate heterogeneity` and `atoll simulate scavenge`, as they are called."""

from __future__ import annotations

from typing import Any

import pytest

ASKED = ["--speeds", "1,1,1,1,1.18,1.18,1.18,1.18", "--jitter", "0.1"]


def test_a_question_of_ones_own_gives_one_object_whose_shares_add_up(ask: Any) -> None:
    arguments = ["heterogeneity", *ASKED, "--quorum", "1", "--grace", "0", "--steps", "200", "--seed", "7"]
    (row,) = ask(*arguments)
    assert row["goodput"] == 1
    assert row["published_goodput"] is None
    assert row["merged_share"] + sum(row["discarded"].values()) + row["in_flight"] == pytest.approx(1)
    assert ask(*arguments) == [row]
    assert ask(*arguments[:-1], "8") != [row]


def test_learners_wait_for_merges_only_where_all_must_be_in_or_when_asked_to(ask: Any) -> None:
    def one(*more: str) -> dict:
        return ask("heterogeneity", "--speeds", "1,1.5", "--jitter", "0", "--steps", "100", *more)[0]

    assert one("--quorum", "1")["wait"] == "never"
    waiting = one("--quorum", "2")
    assert waiting["wait"] == "published"
    assert waiting["goodput"] == pytest.approx((1 / 1.5 + 1) / 2, abs=0.02)
    assert one("--quorum", "2", "--wait", "never")["goodput"] == 1


def test_step_times_are_relative_to_the_fastest(ask: Any) -> None:
    arguments = ["--jitter", "0", "--steps", "100"]
    slow, fast = (ask("heterogeneity", "--speeds", speeds, *arguments)[0] for speeds in ("2,3", "1,1.5"))
    assert slow | {"speeds": None} == fast | {"speeds": None}


def test_a_scavenging_setting_of_ones_own_is_not_compared_with_the_paper(ask: Any) -> None:
    found = ask("scavenge", "--learners", "2", "--extra", "0.5", "--night-hours", "8")
    assert {row["learners_night"] for row in found} == {2, 3}
    assert {row["published"] for row in found} == {None}

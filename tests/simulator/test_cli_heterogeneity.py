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


def test_goodput_is_that_of_waiting_learners_where_all_must_be_in(ask: Any) -> None:
    def one(quorum: int) -> dict:
        arguments = ["--speeds", "1,1.5", "--jitter", "0", "--steps", "100", "--quorum", quorum]
        return ask("heterogeneity", *arguments)[0]

    ours, control = one(1), one(2)
    assert (ours["waits"], ours["goodput"]) == (False, 1)
    # In 1.5 s the fast one works 1 s and the slow one all the time.
    assert control["waits"] and control["goodput"] == pytest.approx((1 / 1.5 + 1) / 2, abs=0.02)


def test_step_times_are_relative_to_the_fastest(ask: Any) -> None:
    arguments = ["--jitter", "0", "--steps", "100"]
    slow, fast = (ask("heterogeneity", "--speeds", speeds, *arguments)[0] for speeds in ("2,3", "1,1.5"))
    assert slow | {"speeds": None} == fast | {"speeds": None}


def test_a_scavenging_setting_of_ones_own_is_not_compared_with_the_paper(ask: Any) -> None:
    found = ask("scavenge", "--learners", "2", "--extra", "0.5", "--night-hours", "8")
    assert {row["learners_night"] for row in found} == {2, 3}
    assert {row["published"] for row in found} == {None}

"""A question of `atoll simulate` about a setting of one's own, as a script asks it."""

from __future__ import annotations

from typing import Any

import pytest

from atoll_cli.simulate.bandwidth import METHODS

FLEET = ("goodput", "--chips", "1.2M", "--learners", "8", "--days", "0.05")


def test_what_a_site_needs_is_one_object_with_the_question_and_the_answer(ask: Any) -> None:
    asked = ("--params", "5B", "--step-time", "1", "--bits", "16", "--interval", "48")
    (row,) = ask("bandwidth", "--method", "decoupled", *asked)
    case = {
        "method": "decoupled",
        "params": 5e9,
        "step_seconds": 1,
        "bits": 16,
        "sites": 8,
        "utilization": 1.0,
    }
    schedule = {"interval": 48, "fragments": 24, "overlap": 2, "layers": 48}
    need = {name: pytest.approx(5 / 3) for name in ("gbps_peak", "gbps_mean", "gbps_link")}
    assert row == {**case, **schedule, **need, "gbps_both_directions": pytest.approx(10 / 3)}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_the_same_options(ask: Any, method: str) -> None:
    traffic = ("--params", "5B", "--step-time", "1", "--bits", "4", "--sites", "2", "--utilization", "0.5")
    (row,) = ask(
        "bandwidth", "--method", method, *traffic, "--interval", "48", "--fragments", "12", "--overlap", "4"
    )
    schedule = {"data-parallel": (1, 1, 0), "diloco": (48, 1, 0), "streaming": (48, 12, 0)}
    assert (row["interval"], row["fragments"], row["overlap"]) == schedule.get(method, (48, 12, 4))
    assert 0 < row["gbps_mean"] <= row["gbps_peak"] * (1 + 1e-9)
    if method == "decoupled":
        assert row["gbps_peak"] == pytest.approx(5 * 4 / (12 * 4))


def test_a_cell_of_the_published_table_is_asked_for_with_options(ask: Any) -> None:
    case = ("--params", "1B", "--step-time", "0.1", "--sites", "2", "--bits", "4", "--utilization", "0.99")
    (row,) = ask("bandwidth", "--method", "streaming-overlap", *case)
    assert 3.0 / 1.207 < row["gbps_peak"] < 3.0 * 1.207


def test_one_fleet_is_one_object_with_all_that_it_rests_on(ask: Any) -> None:
    arguments = (*FLEET, "--method", "decoupled", "--mtbi", "1y")
    (answer,) = ask(*arguments)
    low, high = answer["interval"]
    assert 0.8 < low < answer["goodput"] < high < 0.95
    assert answer["uptime"] > 0.999
    asked = {
        "method": "decoupled",
        "chips": 1_200_000,
        "learners": 8,
        "mtbi": 31_557_600.0,
        "days": 0.05,
        "seed": 0,
    }
    assert answer | asked == answer
    assert sum(answer["share"].values()) == pytest.approx(1.0)
    assert ask(*arguments) == [answer]
    assert ask(*arguments, "--seed", "5")[0]["goodput"] != answer["goodput"]


@pytest.mark.parametrize(
    ("method", "learners"), [("rigid", 1), ("elastic", 1), ("decoupled", 4), ("unit", 4)]
)
def test_every_method_takes_a_number_of_learners_of_which_rigid_and_elastic_have_one(
    ask: Any, method: str, learners: int
) -> None:
    fleet = ("goodput", "--method", method, "--chips", "150k", "--days", "0.01")
    (answer,) = ask(*fleet, "--learners", "4")
    assert answer["learners"] == learners
    if learners == 1:
        assert ask(*fleet) == [answer]


def test_recovery_options_reach_the_answer(ask: Any) -> None:
    told = ("--repair", "10m", "--patience", "1h", "--resize", "60s", "--quorum", "8", "--notice", "1")
    (answer,) = ask(*FLEET, *told)
    constants = {"repair": 600.0, "patience": 3600.0, "pause": 60.0, "quorum": 8, "notice": 1.0}
    assert answer["constants"] == {**constants, "slice_chips": 256}


def test_shares_of_unequal_learners_add_up(ask: Any) -> None:
    speeds = ("--speeds", "1,1,1,1,1.18,1.18,1.18,1.18", "--jitter", "0.1")
    arguments = ["heterogeneity", *speeds, "--quorum", "1", "--grace", "0", "--steps", "60", "--seed", "7"]
    (row,) = ask(*arguments)
    assert row["goodput"] == 1
    assert row["published_goodput"] is None
    assert row["merged_share"] + sum(row["discarded"].values()) + row["in_flight"] == pytest.approx(1)
    assert ask(*arguments[:-1], "8") != [row]


def test_goodput_is_that_of_waiting_learners_where_all_must_be_in(ask: Any) -> None:
    ours, control = (
        ask("heterogeneity", "--speeds", speeds, "--jitter", "0", "--steps", "100", "--quorum", quorum)[0]
        for speeds, quorum in (("1,1.5", 1), ("2,3", 2))  # relative: the fastest counts as 1
    )
    assert (ours["waits"], ours["goodput"]) == (False, 1)
    # In 1.5 s the fast one works 1 s and the slow one all the time.
    assert control["waits"] and control["goodput"] == pytest.approx((1 / 1.5 + 1) / 2, abs=0.02)


def test_a_scavenging_setting_of_ones_own_is_not_compared_with_the_paper(ask: Any) -> None:
    found = ask("scavenge", "--learners", "2", "--extra", "0.5", "--night-hours", "8")
    assert {row["learners_night"] for row in found} == {2, 3}
    assert {row["published"] for row in found} == {None}

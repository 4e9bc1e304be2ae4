"""`atoll simulate goodput`: what it prints, what it draws, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

QUICK = ("--days", "0.1", "--repeats", "4")


def test_one_fleet_is_one_object_with_all_that_it_rests_on(ask: Any) -> None:
    (answer,) = ask(
        "goodput", "--method", "decoupled", "--chips", "1.2M", "--learners", "8", "--mtbi", "1y", *QUICK
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


def test_the_same_seed_prints_the_same_bytes_and_another_does_not(ask: Any) -> None:
    one, same, other = (
        ask("goodput", "--method", "elastic", "--chips", "300k", "--seed", seed, *QUICK) for seed in "445"
    )
    assert one == same
    assert one[0]["goodput"] != other[0]["goodput"]


def test_recovery_options_change_the_answer_the_way_they_should(ask: Any) -> None:
    def goodput(*options: str) -> float:
        value: float = ask("goodput", "--chips", "1.2M", "--learners", "8", *QUICK, *options)[0]["goodput"]
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


def test_grace_takes_in_what_a_quorum_of_one_would_leave_and_costs_no_goodput(ask: Any) -> None:
    def merged(*options: str) -> tuple[float, float]:
        row = ask("goodput", "--chips", "1.2M", "--speeds", "1,1.18", "--jitter", "0.1", *QUICK, *options)[0]
        return row["merged_share"], row["goodput"]

    (alone, useful), (waited, same) = merged("--grace", "0"), merged("--grace", "auto")
    # A unit that a round leaves out keeps its work, and is in a later one.
    assert alone < 0.9 and waited > 0.99 and useful == same
    single = ask("goodput", "--method", "elastic", *QUICK)[0]
    assert single["merged_share"] is None and single["learners"] == 1

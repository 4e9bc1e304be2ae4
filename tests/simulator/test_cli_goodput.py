"""`atoll simulate goodput`, as a script sees it."""

from __future__ import annotations

from typing import Any

import pytest

QUICK = ("--days", "0.05")


def test_one_fleet_is_one_object_with_all_that_it_rests_on(ask: Any) -> None:
    arguments = ("--method", "decoupled", "--chips", "1.2M", "--learners", "8", "--mtbi", "1y", *QUICK)
    (answer,) = ask("goodput", *arguments)
    low, high = answer["interval"]
    assert 0.8 < low < answer["goodput"] < high < 0.95
    assert answer["uptime"] > 0.999
    asked = {name: answer[name] for name in ("method", "chips", "learners", "mtbi", "days", "seed")}
    assert asked == {
        "method": "decoupled", "chips": 1_200_000, "learners": 8, "mtbi": 31_557_600.0, "days": 0.05, "seed": 0,
    }  # fmt: skip
    assert {"notice", "pause", "patience", "repair", "slice_chips", "quorum"} == answer["constants"].keys()
    assert sum(answer["share"].values()) == pytest.approx(1.0)
    assert ask("goodput", *arguments) == [answer]
    assert ask("goodput", *arguments, "--seed", "5")[0]["goodput"] != answer["goodput"]


def test_recovery_options_change_the_answer_the_way_they_should(ask: Any) -> None:
    def goodput(*options: str) -> float:
        value: float = ask("goodput", "--chips", "1.2M", "--learners", "8", *QUICK, *options)[0]["goodput"]
        return value

    base, unit = goodput(), goodput("--method", "unit")
    assert goodput("--resize", "60s") < base < goodput("--resize", "5")
    assert goodput("--patience", "1h") > base > goodput("--patience", "0")
    assert goodput("--mtbi", "26w") < base < goodput("--mtbi", "2y")
    assert goodput("--quorum", "8") < base
    assert unit > goodput("--method", "unit", "--repair", "10m")

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


def test_recovery_options_reach_the_answer(ask: Any) -> None:
    told = ("--repair", "10m", "--patience", "1h", "--resize", "60s", "--quorum", "8")
    (answer,) = ask("goodput", "--chips", "1.2M", "--learners", "8", *QUICK, *told)
    constants = {name: answer["constants"][name] for name in ("repair", "patience", "pause", "quorum")}
    assert constants == {"repair": 600.0, "patience": 3600.0, "pause": 60.0, "quorum": 8}

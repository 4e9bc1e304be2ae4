"""What a run adds up stays when the units go that it came from."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.control, pytest.mark.timeout(300)]
UNITS = ["r-one-0", "r-one-1", "r-two-0"]
WAIT = 60
"""Seconds; a bound for a machine that others use too."""


def total(bench: Any) -> int:
    return int(bench.get("TrainingRun", "r").get("status", {}).get("restarts", 0))


def departed(bench: Any) -> dict[str, Any]:
    return dict(bench.get("TrainingRun", "r")["status"].get("departed", {}))


def uid(bench: Any, name: str) -> str:
    return str(bench.get("LearnerUnit", name)["metadata"]["uid"])


def names(bench: Any) -> set[str]:
    return {unit["metadata"]["name"] for unit in bench.api.list("LearnerUnit", bench.namespace)}


def fail(bench: Any, unit: str, expected: int) -> None:
    """One restart of a unit, which the run's total shows."""
    pod = min(bench.pods(unit))
    bench.kubelet.fail(bench.namespace, pod, 137)
    bench.until(f"{expected} restarts", lambda: total(bench) == expected, WAIT)


def shrink(bench: Any, **units: int) -> None:
    pools = [
        {**pool, "units": units[pool["name"]]} for pool in bench.get("TrainingRun", "r")["spec"]["pools"]
    ]
    bench.api.patch("TrainingRun", bench.namespace, "r", {"spec": {"pools": pools}})


def test_restarts_of_units_that_are_gone_stay_in_the_total_whoever_removed_them(bench, collector) -> None:
    operator = bench.operator()
    bench.settled(bench.run(), UNITS)
    fail(bench, "r-one-1", 1)
    first = uid(bench, "r-one-1")
    shrink(bench, one=1, two=1)
    bench.until("the unit is gone", lambda: "r-one-1" not in names(bench), WAIT)
    bench.until("two are left", lambda: bench.get("TrainingRun", "r")["status"]["unitsWanted"] == 2, WAIT)
    assert total(bench) == 1
    left = departed(bench)
    assert (left["restarts"], left["counted"]) == (1, [first])
    cost = left["lost"]  # of a heal that ended with the unit
    assert (cost["failures"], cost["seconds"] > 0, list(cost["byReason"])) == (1, True, ["AppError"])
    assert cost["chipSeconds"] == pytest.approx(4 * cost["seconds"], abs=0.1)
    assert bench.get("TrainingRun", "r")["status"]["lost"] == cost

    fail(bench, "r-two-0", 2)
    second = uid(bench, "r-two-0")
    bench.api.delete("LearnerUnit", bench.namespace, "r-two-0")
    bench.until("another comes", lambda: "r-two-0" in names(bench) and uid(bench, "r-two-0") != second, WAIT)
    bench.until("it is counted", lambda: departed(bench).get("restarts") == 2, WAIT)
    assert (total(bench), departed(bench)["counted"]) == (2, [first, second])
    assert departed(bench)["lost"]["failures"] == 2

    fail(bench, "r-one-0", 3)
    third = uid(bench, "r-one-0")
    operator.kill()
    bench.api.delete("LearnerUnit", bench.namespace, "r-one-0")
    operator.start()
    bench.until("another comes", lambda: "r-one-0" in names(bench) and uid(bench, "r-one-0") != third, WAIT)
    bench.until("what nobody saw go is counted", lambda: departed(bench).get("restarts") == 3, WAIT)
    bench.settled(bench.get("TrainingRun", "r"), ["r-one-0", "r-two-0"])
    fail(bench, "r-one-0", 4)

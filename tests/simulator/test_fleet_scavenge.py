"""Learners that come for the night."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.simulate.fleet.scavenge import Setting, hours_to_work

IDEAL = Setting(join=0.0, reconfigure=0.0, allreduce=0.0)


@pytest.mark.parametrize("method", ["data-parallel", "decoupled"])
def test_without_costs_both_methods_gain_what_the_night_brings(method: str) -> None:
    # Half the work by day; the other half at twice, at four times the rate.
    assert hours_to_work(IDEAL, method, 4) == pytest.approx(12 + 6)
    assert hours_to_work(IDEAL, method, 12) == pytest.approx(12 + 3)


def test_decoupled_gains_with_each_learner_and_data_parallel_is_worse_before_it_is_better() -> None:
    decoupled = [hours_to_work(Setting(), "decoupled", extra) for extra in range(33)]
    assert decoupled == sorted(decoupled, reverse=True)
    parallel = [hours_to_work(Setting(), "data-parallel", extra) for extra in range(33)]
    assert parallel[4] > parallel[0] > parallel[12]


@given(st.floats(0, 1.0), st.floats(0, 1.0), st.floats(0.1, 3.0), st.floats(1.0, 23.0), st.integers(0, 40))
def test_a_cost_never_helps(join: float, reconfigure: float, change: float, night: float, extra: int) -> None:
    base = Setting(join=join, reconfigure=reconfigure, change=change, day=24 - night, night=night)
    assert hours_to_work(replace(base, join=0.0), "decoupled", extra) <= hours_to_work(
        base, "decoupled", extra
    ) * (1 + 1e-12)
    assert hours_to_work(base, "decoupled", extra) <= base.work * (1 + 1e-12)

"""When refused contributions make a unit suspect."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.protocol.suspicion import REFUSALS, WINDOW, suspicion, with_outcome


def after(outcomes: list[bool]) -> str:
    """Why a unit with these outcomes is suspect, oldest first; True is a refusal."""
    bits = 0
    for refused in outcomes:
        bits = with_outcome(bits, refused)
    return suspicion(bits, "norm: too long")


@pytest.mark.parametrize(
    ("outcomes", "suspect"),
    [
        pytest.param([], False, id="a-new-unit"),
        pytest.param([True] * (REFUSALS - 1), False, id="one-less-than-the-limit"),
        pytest.param([True] * REFUSALS, True, id="the-limit-at-once"),
        pytest.param([True, False, False, False] * REFUSALS, True, id="one-in-four"),
        pytest.param([True, False, False, False, False] * 100, False, id="one-in-five-for-ever"),
        pytest.param([True] * REFUSALS + [False] * (WINDOW - REFUSALS + 1), False, id="long-ago"),
    ],
)
def test_a_unit_is_suspect_after_eight_refusals_among_32_contributions(
    outcomes: list[bool], suspect: bool
) -> None:
    assert bool(after(outcomes)) is suspect


def test_the_reason_names_the_numbers_and_the_last_refusal() -> None:
    assert after([True] * 9) == (
        "9 of its newest 32 contributions were refused, the last one for norm: too long"
    )


@given(st.lists(st.booleans(), max_size=100))
def test_only_the_newest_outcomes_count(outcomes: list[bool]) -> None:
    assert bool(after(outcomes)) is (sum(outcomes[-WINDOW:]) >= REFUSALS)

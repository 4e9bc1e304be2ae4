"""Which norms are outliers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.protocol.norms import EACH, MERGES, WARM, Norms, level


def warm(*levels: float, merges: int = WARM) -> Norms:
    norms = Norms()
    for _ in range(merges):
        norms.accept(levels or (0.0, 0.1, -0.1))
    return norms


@pytest.mark.parametrize(
    ("norms", "found", "refused"),
    [
        pytest.param(warm(), {"a": 0.0, "b": math.log(10_000.0)}, {"b"}, id="ten-thousand-fold"),
        pytest.param(warm(), {"a": math.log(31.0)}, set(), id="below-the-floor"),
        pytest.param(warm(), {"a": -20.0, "b": -math.inf, "c": 0.0}, set(), id="too-short-does-no-harm"),
        pytest.param(Norms(), {"a": 0.0, "b": 20.0}, set(), id="of-two-units-none-tells"),
        pytest.param(Norms(), {"a": 0.0, "b": 0.1, "c": 9.0}, {"c"}, id="the-first-merge-of-three"),
        pytest.param(warm(merges=WARM - 1), {"a": 5.0}, set(), id="before-it-is-warm"),
        pytest.param(
            warm(-4.0, 0.0, 4.0, merges=MERGES), {"a": 5.0, "b": 0.0}, set(), id="a-wide-spread-allows-more"
        ),
        pytest.param(
            warm(0.0, -1.2, merges=MERGES),
            {"a": 8.1, "b": -1.2, "c": 0.0},
            {"a"},
            id="beside-norms-of-two-sizes",
        ),
        pytest.param(warm(), {"a": 9.0, "b": 9.1, "c": 9.2}, set(), id="all-of-them-so-the-run-has-changed"),
    ],
)
def test_an_outlier_is_far_above_what_was_merged_and_what_others_send(
    norms: Norms, found: dict[str, float], refused: set[str]
) -> None:
    assert set(norms.outliers(found, units=set("abcd"))) == refused


def test_a_refusal_says_how_far_it_is() -> None:
    why = warm().outliers({"a": math.log(10_000.0)}, units=set("abcdefgh"))["a"]
    assert why.startswith("norm: 1e+04 times the median of its fragment, 32 at most is taken")


def test_a_run_whose_norms_change_for_good_is_judged_by_the_new_ones_when_most_units_were_refused() -> None:
    norms = warm()
    for n, unit in enumerate("abcd"):
        assert set(norms.outliers({unit: 9.0}, units=set("abcdefgh"))) == {unit}, n
        assert set(norms.outliers({unit: 9.0}, units=set("abcdefgh"))) == {unit}, "the same unit counts once"
    assert norms.outliers({"e": 9.0}, units=set("abcdefgh")) == {}
    for _ in range(WARM):
        norms.accept([9.0, 9.1])
    assert norms.outliers({"a": 9.0, "b": 0.0}, units=set("abcdefgh")) == {}


def test_units_that_were_refused_and_have_left_do_not_show_that_the_run_has_changed() -> None:
    norms = warm()
    assert set(norms.outliers({"a": 9.0, "b": 9.0}, units=set("abcde"))) == {"a", "b"}
    assert set(norms.outliers({"c": 9.0}, units=set("cde"))) == {"c"}, "one of three"


def test_memory_is_bounded_whatever_the_number_of_units_and_merges() -> None:
    norms = Norms()
    for n in range(100):
        norms.accept([0.01 * (n + unit) for unit in range(1000)])
    assert len(norms.merges) == MERGES and all(len(merge) == EACH for merge in norms.merges)
    first, *_, last = norms.merges[-1]
    assert (first, last) == (pytest.approx(0.99), pytest.approx(0.01 * 1098)), "the whole range is kept"


def test_a_contribution_of_a_hundred_steps_may_be_longer_than_one_of_a_single_step() -> None:
    assert level(10.0, 100) == pytest.approx(level(1.0, 1))
    assert level(0.0, 3) == -math.inf


logs = st.floats(-50.0, 50.0)


@given(
    st.lists(st.lists(st.floats(-1.5, 1.5), min_size=1, max_size=12), max_size=12), st.integers(1, 12), logs
)
def test_no_unit_is_refused_where_norms_differ_by_less_than_the_floor(
    merges: list[list[float]], units: int, shift: float
) -> None:
    norms = Norms()
    for merge in merges:
        found = {f"u{i}": shift + value for i, value in enumerate(merge)}
        assert norms.outliers(found, units={f"u{i}" for i in range(units)}) == {}
        norms.accept(list(found.values()))


@given(st.lists(st.lists(logs, min_size=3, max_size=9), min_size=1, max_size=12))
def test_no_more_than_half_of_a_round_is_refused(merges: list[list[float]]) -> None:
    norms = Norms()
    for merge in merges:
        found = {f"u{i}": value for i, value in enumerate(merge)}
        wrong = norms.outliers(found, units=set(found))
        assert len(wrong) <= len(found) / 2
        norms.accept([value for unit, value in found.items() if unit not in wrong])

"""Which units disagree in an audit."""

from __future__ import annotations

import math

import pytest

from atoll_runtime.protocol.audit import MEASURED, Audits
from atoll_runtime.protocol.messages import Audit

SOUND = (5.0, 5.0, 5.0, 5.0)


def told(
    audits: Audits, step: int, *losses: float, kind: str = "v6e", incarnation: int = 1
) -> dict[str, str]:
    """All disagreements after units a, b, c, … have reported these results."""
    names = "abcdefgh"[: len(losses)]
    present = dict.fromkeys(names, 1)
    found: dict[str, str] = {}
    for name, loss in zip(names, losses, strict=True):
        found |= audits.disagreements(name, incarnation, Audit(step, kind, loss), present)
    return found


def measured(*losses: float) -> Audits:
    """Audits in which the first ones had these results."""
    audits = Audits()
    for step in range(MEASURED):
        assert told(audits, step, *losses) == {}, "nobody is judged"
    return audits


@pytest.mark.parametrize(
    ("start", "losses", "wrong"),
    [
        pytest.param(SOUND, SOUND, "", id="all-alike"),
        pytest.param(SOUND, (5.0, 5.0, 5.0, 5.001), "d", id="one-is-off"),
        pytest.param(SOUND, (4.999, 5.0, 5.0, 5.0), "a", id="the-first-to-tell-is-off"),
        pytest.param(SOUND, (5.0, 5.0, math.nan, 5.0), "c", id="not-a-number"),
        pytest.param(SOUND, (5.0, 5.0, math.inf, 5.0), "c", id="infinite"),
        pytest.param(SOUND, (5.0, 5.0, 5.0, 5.0000001), "", id="the-last-place-of-float32"),
        pytest.param(SOUND, (5.0, 6.0), "", id="two-cannot-tell"),
        pytest.param(SOUND, (6.0, 7.0, 5.0, 5.0), "", id="half-of-them-is-no-minority"),
        pytest.param(
            (5.0, 5.0, 5.005, 5.005), (5.0, 5.0, 5.0, 5.039), "", id="eight-times-what-was-measured"
        ),
        pytest.param((5.0, 5.0, 5.005, 5.005), (5.0, 5.0, 5.0, 5.041), "d", id="more-than-that"),
        pytest.param((5.0, 5.0, 5.0, 9.0), (5.0, 5.0, 5.0, 5.1), "d", id="one-was-wrong-from-the-beginning"),
    ],
)
def test_a_unit_disagrees_whose_result_is_further_off_than_rounding(
    start: tuple[float, ...], losses: tuple[float, ...], wrong: str
) -> None:
    found = told(measured(*start), 100, *losses)
    assert "".join(found) == wrong
    assert all("4 units with v6e that evaluated global step 100" in why for why in found.values())


def test_an_audit_in_which_half_of_the_units_fail_measures_nothing() -> None:
    audits = Audits()
    for step in range(MEASURED):
        assert told(audits, step, 5.0, 5.0, math.nan, math.inf) == {}
    for step in range(10, 10 + MEASURED):
        assert told(audits, step, *SOUND) == {}, "nobody is judged before the tolerance is measured"
    assert list(told(audits, 100, 5.0, 5.0, 5.0, 5.1)) == ["d"]


def test_results_of_other_kinds_steps_and_incarnations_do_not_count() -> None:
    audits = measured(*SOUND)
    assert told(audits, 100, 5.0, 5.0, 5.0) == {}
    assert told(audits, 100, 9.0, 9.0, 9.0, 9.0, kind="v5p") == {}, "of this kind nothing is measured yet"
    assert told(audits, 101, 5.0, 5.0) == {}
    assert audits.disagreements("c", 2, Audit(101, "v6e", 9.0), {"a": 1, "b": 1, "c": 1}) == {}

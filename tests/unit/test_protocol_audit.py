"""Which units disagree in an audit."""

from __future__ import annotations

import math

import pytest

from atoll_runtime.protocol import schedule
from atoll_runtime.protocol.audit import FACTOR, MEASURED, Audits
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
        pytest.param((5.0, 5.001, 4.999, 5.0), (5.0, 5.001, 4.999, 5.004), "", id="as-much-as-was-measured"),
        pytest.param((5.0, 5.001, 4.999, 5.0), (5.0, 5.001, 4.999, 5.1), "d", id="more-than-was-measured"),
        pytest.param((5.0, 5.0, 5.0, 9.0), (5.0, 5.0, 5.0, 5.1), "d", id="one-was-wrong-from-the-beginning"),
    ],
)
def test_a_unit_disagrees_whose_result_is_further_off_than_rounding(
    start: tuple[float, ...], losses: tuple[float, ...], wrong: str
) -> None:
    found = told(measured(*start), 100, *losses)
    assert "".join(found) == wrong
    assert all("4 units with v6e that evaluated global step 100" in why for why in found.values())


def test_results_of_other_kinds_steps_and_incarnations_do_not_count() -> None:
    audits = measured(*SOUND)
    assert told(audits, 100, 5.0, 5.0, 5.0) == {}
    assert told(audits, 100, 9.0, 9.0, 9.0, 9.0, kind="v5p") == {}, "of this kind nothing is measured yet"
    assert told(audits, 101, 5.0, 5.0) == {}
    assert audits.disagreements("c", 2, Audit(101, "v6e", 9.0), {"a": 1, "b": 1, "c": 1}) == {}


def test_the_tolerance_is_a_multiple_of_the_largest_deviation_that_was_measured() -> None:
    audits = measured(5.0, 5.0, 5.005, 5.005)  # 0.001 of the lower median
    limit = 5.0 * (1 + 0.001 * FACTOR)
    assert told(audits, 50, 5.0, 5.0, 5.0, limit - 0.001) == {}
    assert set(told(audits, 51, 5.0, 5.0, 5.0, limit + 0.001)) == {"d"}


@pytest.mark.parametrize("step", range(1, 40))
def test_the_newest_version_of_a_fragment_is_of_the_last_step_at_which_it_was_due(step: int) -> None:
    fragments, interval = 3, 8
    for p in range(fragments):
        steps = [t for t in range(1, step + 1) if schedule.due(t, fragments, interval) == p]
        assert schedule.newest(step, p, fragments, interval) == (steps[-1] if steps else 0)

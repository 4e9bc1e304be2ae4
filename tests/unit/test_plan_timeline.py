"""The stages of a heal, from pods and syncer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.api.learnerunit import Heal, HealStages, LearnerUnitStatus
from atoll_operator.plan.clock import format_time
from atoll_operator.plan.pods.view import PodView, view
from atoll_operator.plan.unit.timeline import complete, filled, news, notice, stages
from atoll_runtime.contract import BeginningReport, UnitReport

FAILED = 1_700_000_000.0
MERGED = FAILED + 40
PODS = (
    PodView(name="a", scheduled_at=FAILED + 2, started_at=FAILED + 5),
    PodView(name="b", scheduled_at=FAILED + 3, started_at=FAILED + 4),
)
BEGINNING = BeginningReport(joined=FAILED + 12, stepped=FAILED + 35, compiling=20.0, compiled=2, loaded=17)
UNKNOWN = HealStages()


def seconds(found: HealStages) -> dict[str, float]:
    return {name: value for name, value in found if value is not None}


@pytest.mark.parametrize(
    ("pods", "beginning", "wanted"),
    [
        pytest.param(
            PODS, BEGINNING,
            {"schedule": 3, "pull": 2, "start": 7, "restore": 3, "compile": 20, "catch_up": 5},
            id="each-ends-with-the-last-host",
        ),
        pytest.param(
            tuple(replace(pod, scheduled_at=FAILED - 900) for pod in PODS), BEGINNING,
            {"schedule": 0, "pull": 5, "start": 7, "restore": 3, "compile": 20, "catch_up": 5},
            id="in-place-there-is-nothing-to-schedule",
        ),
        pytest.param(
            (PODS[0], replace(PODS[1], started_at=None)), BEGINNING,
            {"schedule": 3, "start": 9, "restore": 3, "compile": 20, "catch_up": 5},
            id="what-is-not-known-falls-to-the-next",
        ),
        pytest.param(PODS, None, {"schedule": 3, "pull": 2}, id="before-the-learner-has-told"),
        pytest.param((), None, {}, id="nothing-is-known"),
        pytest.param(
            PODS, BEGINNING.model_copy(update={"compiling": 99.0}),
            {"schedule": 3, "pull": 2, "start": 7, "restore": 0, "compile": 23, "catch_up": 5},
            id="no-more-compilation-than-there-was-time",
        ),
    ],
)  # fmt: skip
def test_stages_follow_each_other(
    pods: tuple[PodView, ...], beginning: BeginningReport | None, wanted: dict[str, float]
) -> None:
    assert seconds(stages(FAILED, MERGED, pods, beginning)) == wanted


moments = st.floats(FAILED - 1000, MERGED + 1000)


@given(
    st.lists(st.tuples(st.none() | moments, st.none() | moments), max_size=4),
    moments, moments, st.floats(0, 1000),
)  # fmt: skip
def test_whatever_the_clocks_say_no_stage_is_negative_and_their_sum_is_the_heal(
    pods: list[tuple[float | None, float | None]], joined: float, stepped: float, compiling: float
) -> None:
    views = [PodView(name="p", scheduled_at=one, started_at=two) for one, two in pods]
    found = stages(
        FAILED, MERGED, views, BeginningReport(joined=joined, stepped=stepped, compiling=compiling)
    )
    assert min(seconds(found).values()) >= 0
    assert sum(seconds(found).values()) == pytest.approx(MERGED - FAILED, abs=0.05)


def healed(**changes: Any) -> LearnerUnitStatus:
    heal = Heal(incarnation=3, reason="NodeLost", started_at=format_time(FAILED), seconds=40.0)
    return LearnerUnitStatus(incarnation=3, last_heal=heal.model_copy(update=changes))


def report(**changes: Any) -> UnitReport:
    return UnitReport(incarnation=3, hosts=2, state="Learning", beginning=BEGINNING).model_copy(
        update=changes
    )


def test_a_merge_that_is_told_of_before_the_first_step_leaves_stages_open_until_that_is_known() -> None:
    early = filled(healed(), PODS, report(beginning=None))
    assert early.last_heal is not None and not complete(early.last_heal)
    assert early.last_heal.stages.pull == 2
    assert news(healed(), early) is None
    late = filled(early, PODS, report())
    assert late.last_heal is not None and complete(late.last_heal)
    assert news(early, late) == late.last_heal.stages
    assert news(late, filled(late, (), None)) is None, "it is told once, and kept"
    assert filled(late, (), None).last_heal == late.last_heal


@pytest.mark.parametrize(
    "status",
    [
        pytest.param(LearnerUnitStatus(incarnation=3), id="never-healed"),
        pytest.param(healed(incarnation=2), id="healed-before-this-incarnation"),
    ],
)
def test_the_stages_of_another_incarnation_are_not_made_up(status: LearnerUnitStatus) -> None:
    assert filled(status, PODS, report()) == status


def test_an_older_incarnation_has_nothing_to_say_of_this_heal() -> None:
    found = filled(healed(), PODS, report(incarnation=2)).last_heal
    assert found is not None and found.stages.compile is None


def test_the_event_names_each_stage_and_what_the_cache_gave() -> None:
    status = filled(healed(), PODS, report())
    assert status.last_heal is not None
    told = notice(status.last_heal, report())
    assert (told.reason, told.occasion) == ("HealStages", "3")
    assert told.message == (
        "40.0 s: schedule 3.0 s, pull 2.0 s, start 7.0 s, restore 3.0 s, compile 20.0 s, catch up 5.0 s; "
        "17 of 19 programs came from the cache"
    )


def test_a_pod_tells_when_it_got_its_node() -> None:
    condition = {"type": "PodScheduled", "status": "True", "lastTransitionTime": format_time(FAILED)}
    body = {"metadata": {"name": "p"}, "status": {"conditions": [condition]}}
    assert view(body).scheduled_at == FAILED
    condition["status"] = "False"
    assert view(body).scheduled_at is None

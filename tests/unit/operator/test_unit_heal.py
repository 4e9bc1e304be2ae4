"""A heal and its stages, as the status, the metrics and an Event tell them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scene import Scene, learning

from atoll_operator.api.learnerunit import Heal, HealStages
from atoll_runtime.contract import BeginningReport

SECONDS = 40.0
"""From the failure to the merge."""
TOLD = {"joined": 12.0, "stepped": 35.0, "compiling": 20.0}
"""Seconds after the failure, and seconds of compilation, as the learner tells them."""
SLOW = {**TOLD, "compiling": 99.0}
"""It compiles for longer than there was time."""
LEARNER = {"start": 7, "restore": 3, "compile": 20, "catch_up": 5}


def healed(scene: Scene, scheduled: float = 3.0, started: float = 5.0, told: Any = TOLD) -> Heal:
    """The heal of a scene in which something has just failed."""
    failed = scene.now
    scene.rest()
    scene.now = failed + scheduled
    waiting = [host for host in range(4) if "nodeName" not in scene.pod(host)["spec"]]
    for host in waiting:
        scene.bind(host, f"red-{host}")
    scene.now = failed + started
    for host in waiting:
        scene.start(host)
    scene.make_room(*({0, 1, 2, 3} - {*waiting}))
    scene.now = failed + SECONDS
    tell(scene, failed, told)
    return scene.status.last_heal


def tell(scene: Scene, failed: float, told: dict[str, float] | None, **changes: Any) -> None:
    """The syncer reports the merge, and what the learner told of its beginning."""
    beginning = None
    if told is not None:
        joined, stepped = failed + told["joined"], failed + told["stepped"]
        programs = {"compiling": told["compiling"], "compiled": 2, "loaded": 17}
        beginning = BeginningReport(joined=joined, stepped=stepped, **programs)
    scene.hear(first_merge_time=failed + SECONDS, beginning=beginning, **changes)


def known(stages: HealStages) -> dict[str, float]:
    return {name: value for name, value in stages if value is not None}


@pytest.mark.parametrize(
    ("act", "told", "wanted"),
    [
        pytest.param(Scene.fail, TOLD, {"schedule": 3, "pull": 2, **LEARNER}, id="a-replaced-pod"),
        pytest.param(Scene.crash, TOLD, {"schedule": 0, "pull": 5, **LEARNER}, id="in-place-nothing-is-scheduled"),
        pytest.param(Scene.fail, None, {"schedule": 3, "pull": 2}, id="before-the-learner-has-told"),
        pytest.param(Scene.fail, SLOW, {"schedule": 3, "pull": 2, **LEARNER, "restore": 0, "compile": 23}, id="slow"),
    ],
)  # fmt: skip
def test_stages_follow_each_other(act: Any, told: dict[str, float] | None, wanted: dict[str, float]) -> None:
    scene = learning()
    act(scene, 1)
    assert known(healed(scene, told=told).stages) == wanted


def test_the_time_of_a_stage_that_is_not_known_falls_to_the_next() -> None:
    scene = learning().fail(1)
    failed = scene.now
    scene.now = failed + 3
    scene.place()
    scene.pod(1)["status"]["containerStatuses"] = []
    tell(scene, failed, TOLD)
    assert known(scene.status.last_heal.stages) == {"schedule": 3, **LEARNER, "start": 9}


moments = st.floats(-1000, 1000)


@given(moments, moments, moments, moments, st.floats(0, 1000))
def test_whatever_the_clocks_say_no_stage_is_negative_and_their_sum_is_the_heal(
    scheduled: float, started: float, joined: float, stepped: float, compiling: float
) -> None:
    scene = learning().fail(1)
    told = {"joined": joined, "stepped": stepped, "compiling": compiling}
    stages = known(healed(scene, scheduled, started, told).stages)
    assert min(stages.values()) >= 0
    assert sum(stages.values()) == pytest.approx(SECONDS, abs=0.05)


def test_a_merge_that_is_told_before_the_first_step_leaves_stages_open_until_that_is_known() -> None:
    scene = learning().fail(1)
    failed = scene.now
    assert healed(scene, told=None).stages.catch_up is None
    tell(scene, failed, TOLD, incarnation=1)
    heal = scene.status.last_heal
    assert heal is not None and heal.stages.catch_up is None, "of another one"
    scene.set(report=scene.report.model_copy(update={"incarnation": 2}) if scene.report else None).once()
    assert scene.status.last_heal.stages.catch_up == 5

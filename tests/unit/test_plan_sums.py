"""Sums of a run: they never fall, and what deleted units and syncer pods had stays in them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_scene import NOW, RunScene, unit_status

from atoll_operator.api.common import MAX_REASONS, CostStatus
from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan import cost
from atoll_operator.plan.clock import format_time

HEAL = cost.of_heal(0.1, chips=4, step_seconds=0.1)


def failed(status: LearnerUnitStatus, *reasons: str) -> LearnerUnitStatus:
    """The unit after a restart and a heal for each reason."""
    lost = status.lost
    for reason in reasons:
        lost = cost.with_heal(lost, reason, HEAL)
    return status.model_copy(update={"restart_count": status.restart_count + len(reasons), "lost": lost})


def fail(scene: RunScene, name: str, *reasons: str) -> None:
    scene.unit(name, failed(scene.units[name].status, *reasons))


def figures(lost: CostStatus | None) -> dict[str, float]:
    """All figures, in all and by reason."""
    parts = {"": lost, **lost.by_reason} if lost is not None else {}
    fields = ("failures", "seconds", "chip_seconds", "steps")
    return {f"{name}.{field}": getattr(part, field) for name, part in parts.items() for field in fields}


ACTS = st.tuples(
    st.sampled_from(["fail", "fail", "scale down", "scale up", "delete", "delete unseen"]),
    st.sampled_from(["r-p-0", "r-p-1", "r-p-2"]),
    st.sampled_from(["Hang", "NodeLost", "AppError"]),
)


@settings(max_examples=300)
@given(st.lists(ACTS, max_size=30))
def test_restarts_and_costs_include_deleted_units_and_never_fall(acts: list[tuple[str, str, str]]) -> None:
    scene, failures = RunScene({"p": 3}), 0
    scene.step()
    for act, name, reason in acts:
        before = scene.status
        if act == "fail" and name in scene.units:
            fail(scene, name, reason)
            failures += 1
        elif act.startswith("scale"):
            scene.change({"p": 1 if act == "scale down" else 3})
        elif act.startswith("delete"):
            scene.units.pop(name, None)
        for _ in range(1 if act == "delete unseen" else 2):
            scene.step()
        old, new = figures(before.lost), figures(scene.status.lost)
        assert all(new[key] >= value for key, value in old.items())
        assert scene.status.restarts == failures
        assert new.get(".failures", 0) == failures
        assert new.get(".chip_seconds", 0.0) == pytest.approx(0.4 * failures)


def test_deleted_part_is_shown_and_its_reasons_keep_their_names() -> None:
    scene = RunScene({"p": 2})
    scene.step()
    fail(scene, "r-p-1", *(f"Early{number}" for number in range(MAX_REASONS - 2)))
    fail(scene, "r-p-0", "Late1")
    scene.step()
    fail(scene, "r-p-0", "Late0")
    scene.step()
    scene.change({"p": 1}).step()
    scene.step()
    status = scene.status
    assert (status.restarts, status.deleted_units.restarts) == (MAX_REASONS, MAX_REASONS - 2)
    assert set(status.deleted_units.lost.by_reason) == {f"Early{n}" for n in range(MAX_REASONS - 2)}
    assert (status.lost.by_reason["Late1"].failures, status.lost.by_reason["Other"].failures) == (1, 1)
    assert len(status.lost.by_reason) == MAX_REASONS


def test_unit_of_an_earlier_run_and_heal_under_way_add_nothing() -> None:
    heals = unit_status(False, heal_start_time=format_time(NOW - 9), heal_reason="Hang", chips=4)
    earlier: Any = {"owned": False, "ours": False}
    scene = RunScene().unit("r-p-0", failed(unit_status(), "Hang"), **earlier).unit("r-p-1", heals)
    scene.step()
    assert (scene.status.restarts, scene.status.lost, scene.status.deleted_units) == (0, None, None)


def test_bytes_stay_when_a_syncer_pod_begins_to_count_from_zero() -> None:
    scene, told = RunScene(), []
    for raw in (0, 500, 800, 20, 60, 60):
        scene.syncer(bytes_in=raw, bytes_out=2 * raw).step()
        told.append((scene.status.bytes_in, scene.status.bytes_out))
    assert told == [(raw, 2 * raw) for raw in (0, 500, 800, 800, 840, 840)]
    assert (scene.status.earlier_bytes_in, scene.status.earlier_bytes_out) == (780, 1560)

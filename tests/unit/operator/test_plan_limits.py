"""Limits of a namespace: who may begin or grow, by age; what runs is never stopped."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_scene import RunScene

from atoll_operator.api.trainingrun import TrainingRunStatus
from atoll_operator.plan.limits import Claim, Limits, NamespaceLimits, Room, rooms, run_claim

FIVE = Limits(runs=2, hosts=5)


def claim(age: int, has: int | None, wants: int, kind: str = "TrainingRun") -> Claim:
    return Claim(f"2026-11-2{age}", kind, f"r{age}", has, wants)


@pytest.mark.parametrize(
    ("claims", "limits", "hosts"),
    [
        pytest.param([claim(1, None, 9), claim(2, None, 9)], Limits(), [9, 9], id="no limit"),
        pytest.param([claim(2, None, 3), claim(1, None, 3)], FIVE, [None, 3], id="the older one begins"),
        pytest.param([claim(1, None, 3), claim(2, 3, 3)], FIVE, [None, 3], id="what runs stays"),
        pytest.param([claim(1, None, 9), claim(2, None, 5)], FIVE, [None, 5], id="one that never fits"),
        pytest.param([claim(n, None, 1) for n in (1, 2, 3)], FIVE, [1, 1, None], id="runs"),
        pytest.param([claim(1, 2, 3), claim(2, None, 3), claim(3, None, 2)], FIVE, [3, None, 2], id="growth first"),
        pytest.param([claim(1, 2, 6), claim(2, None, 3)], FIVE, [2, 3], id="growth that does not fit"),
        pytest.param([claim(1, 9, 9), claim(2, None, 1)], FIVE, [9, None], id="limits that were lowered"),
        pytest.param([claim(1, 9, 2), claim(2, None, 3)], FIVE, [2, 3], id="one that shrinks"),
        pytest.param([claim(1, 4, 4), claim(2, None, 2, "LearnerUnit")], FIVE, [4, None], id="unit made by hand"),
        pytest.param([claim(1, 1, 1), claim(2, 1, 1), claim(3, None, 1, "LearnerUnit")], FIVE, [1, 1, 1], id="no run"),
    ],
)  # fmt: skip
def test_the_oldest_begin_and_grow_as_far_as_there_is_room(claims: Any, limits: Limits, hosts: Any) -> None:
    assert [rooms(claims, limits)[each].hosts for each in claims] == hosts


def test_a_message_names_the_limit_its_value_and_what_would_be_right() -> None:
    claims = [claim(1, 4, 4), claim(2, None, 3), claim(3, 0, 0)]
    assert rooms(claims, Limits(hosts=5))[claims[1]].message.startswith(
        "hosts: 4 of at most 5 are taken, and this needs 3 more; use 1, or wait"
    )
    assert "runs: 2 of at most 2 have begun; suspend or delete one" in rooms(claims, FIVE)[claims[1]].message


CLAIMS = st.lists(st.tuples(st.none() | st.integers(0, 5), st.integers(0, 5), st.booleans()), max_size=6)


@given(drawn=CLAIMS, runs=st.integers(0, 4), hosts=st.integers(0, 12))
def test_all_that_decide_at_the_same_time_stay_within_the_limits(drawn: Any, runs: int, hosts: int) -> None:
    kinds = {True: "TrainingRun", False: "LearnerUnit"}
    claims = [claim(age, has, wants, kinds[run]) for age, (has, wants, run) in enumerate(drawn)]
    found = rooms(claims, Limits(runs=runs, hosts=hosts))
    decided = [found[each] for each in claims]
    had = sum(min(each.has or 0, each.wants) for each in claims)
    assert sum(each.hosts or 0 for each in decided) <= max(hosts, had)
    for each, room in zip(claims, decided, strict=True):
        assert each.has is None or room.hosts in (each.has, each.wants), "it keeps what it has"
        assert bool(room.message) is (room.hosts != each.wants)
    of_runs = [each for each in zip(claims, decided, strict=True) if each[0].kind == "TrainingRun"]
    begun = sum(each.has is not None for each, _ in of_runs)
    assert sum(room.hosts is not None for _, room in of_runs) <= max(runs, begun)


def test_a_namespace_may_have_limits_of_its_own() -> None:
    limits = NamespaceLimits.model_validate(
        {"runs": 2, "hosts": 9, "namespaces": {"a": {"hosts": 1}, "b": {"runs": None}}}
    )
    found = [limits.of(name) for name in ("a", "b", "c")]
    assert found == [Limits(runs=2, hosts=1), Limits(hosts=9), Limits(runs=2, hosts=9)]


FULL = Room(None, "hosts: 4 of at most 5 are taken")


def test_the_time_of_a_run_does_not_run_out_while_it_waits_for_room() -> None:
    """Before it begins, and after a suspension."""
    scene = RunScene({"p": 2}, evaluation={}, activeDeadlineSeconds=60).unknown().see(room=FULL)
    plan = scene.step(100)
    assert not (plan.apply or plan.apply_units or plan.apply_evaluator or plan.poll_syncer)
    assert (plan.status.phase, plan.status.start_time, plan.wake) == ("Pending", None, 1_700_000_110.0)
    assert [notice.reason for notice in plan.notices] == ["NamespaceLimit"]
    plan = scene.see(room=Room(2)).step(200)
    assert len(plan.apply_units) == plan.status.hosts == 2
    assert [scene.condition("Failed", later)[0] for later in (259, 260)] == ["False", "True"]
    scene.change(suspend=True).step(210)
    scene.change(suspend=False).see(room=FULL)
    assert [scene.step(later).status.phase for later in (220, 3810)] == ["Suspended"] * 2
    assert scene.condition("Ready", 3810) == ("False", "NamespaceLimit", FULL.message)
    scene.see(room=Room(2)).step(3810)
    assert (scene.status.suspended_seconds, scene.status.suspend_time) == (3600, None)
    assert [scene.condition("Failed", later)[0] for later in (3859, 3860)] == ["False", "True"]


def test_a_run_claims_hosts_unless_it_is_over_or_suspended() -> None:
    metadata = {"name": "r", "creationTimestamp": "2026"}
    four = {"name": "p", "accelerator": "tpu-v6e-slice", "topology": "4x4", "slicesPerUnit": 2, "units": 3}

    def found(phase: str, *, readable: bool = True, suspend: bool = False, **status: Any) -> Any:
        scene, told = RunScene([four], suspend=suspend), TrainingRunStatus(phase=phase, **status)
        one = run_claim(metadata, scene.spec if readable else None, told)
        return one and (one.has, one.wants)

    assert (found("Pending"), found("Running"), found("Running", hosts=8)) == ((None, 24), (24, 24), (8, 24))
    assert found("Suspended") == (None, 24), "it goes on when there is room"
    assert found("Suspending", suspend=True) == (24, 24)
    assert [found("Suspended", suspend=True), found("Complete"), found("Failed")] == [None] * 3
    assert found("Pending", hosts=8) == (8, 24), "its phase is one that this version does not know"
    assert found("Running", hosts=8, readable=False) == (8, 8)
    assert [found(phase, readable=False) for phase in ("Pending", "Suspended", "Failed")] == [None] * 3

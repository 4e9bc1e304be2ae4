"""What the status of a unit says of its heals, its link and its ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_kinds import learner_unit
from run_scene import NOW

from atoll_operator.api.common import LedgerStatus
from atoll_operator.api.learnerunit import Failure, HealStages, LearnerUnitStatus
from atoll_operator.api.sections import RecoverySpec
from atoll_operator.plan.conditions import find, format_time, state, transition
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.run.syncer_state import SyncerState
from atoll_operator.plan.unit import link
from atoll_operator.plan.unit.plan import plan_unit
from atoll_operator.plan.unit.status import describe
from atoll_operator.plan.unit.unit import UnitPlan
from atoll_runtime.contract import (
    BeginningReport,
    CommunicationSpec,
    LedgerReport,
    LinkReport,
    SyncerStatus,
    UnitReport,
    WaitReport,
)  # fmt: skip

FAILED, SECONDS = NOW - 100.0, 40.0
"""When a host of the unit failed, and seconds from then to the merge."""
HURT = LearnerUnitStatus(
    incarnation=3, placement=3, chips=8, step_seconds=0.5, heal_start_time=format_time(FAILED), heal_reason="AppError",
    last_failure=Failure(reason="AppError", time=format_time(FAILED)),
)  # fmt: skip
TOLD = {"joined": 12.0, "stepped": 35.0, "compiling": 20.0}
"""Seconds after the failure, and seconds of compilation, as the learner tells them."""
SLOW = {**TOLD, "compiling": 99.0}
"""It compiles for longer than there was time."""
LEARNER = {"start": 7, "restore": 3, "compile": 20, "catch_up": 5}


def told(seconds: dict[str, float] | None) -> BeginningReport | None:
    if seconds is None:
        return None
    joined, stepped = FAILED + seconds["joined"], FAILED + seconds["stepped"]
    return BeginningReport(
        joined=joined, stepped=stepped, compiling=seconds["compiling"], compiled=2, loaded=17
    )


def described(
    status: LearnerUnitStatus = HURT, members: tuple[PodView, ...] = (), unit: Any = None, **report: Any
) -> LearnerUnitStatus:
    """The status after a report of its incarnation; `unit`: other fields of what is observed."""
    values: dict[str, Any] = {"incarnation": 3, "hosts": 2, "state": "Learning", "seeded_step": 40}
    units = {"r-two-0": UnitReport(**(values | {"first_merge_time": FAILED + SECONDS} | report))}
    syncer = SyncerState().heard(SyncerStatus(run_uid="u", phase="Running", units=units), NOW)
    observed = replace(learner_unit(), **({"status": status, "syncer": syncer} | (unit or {})))
    return describe(observed, UnitPlan(status=status, members=members)).status


def pods(scheduled: float | None, started: float | None) -> tuple[PodView, ...]:
    """Two pods: the second has a node, and its container runs, so long after the failure."""
    moments = (None if after is None else FAILED + after for after in (scheduled, started))
    scheduled_at, started_at = moments
    early = PodView(name="a", node="n", scheduled_at=FAILED - 900, started_at=FAILED - 900)
    return early, replace(early, name="b", scheduled_at=scheduled_at, started_at=started_at)


def known(stages: HealStages) -> dict[str, float]:
    return {name: value for name, value in stages if value is not None}


@pytest.mark.parametrize(
    ("scheduled", "started", "learner", "wanted"),
    [
        pytest.param(3, 5, TOLD, {"schedule": 3, "pull": 2, **LEARNER}, id="a-replaced-pod"),
        pytest.param(-900, 5, TOLD, {"schedule": 0, "pull": 5, **LEARNER}, id="in-place-nothing-is-scheduled"),
        pytest.param(3, 5, None, {"schedule": 3, "pull": 2}, id="before-the-learner-has-told"),
        pytest.param(3, 5, SLOW, {"schedule": 3, "pull": 2, **LEARNER, "restore": 0, "compile": 23}, id="slow"),
        pytest.param(3, None, TOLD, {"schedule": 3, **LEARNER, "start": 9}, id="an-unknown-stage-falls-to-the-next"),
    ],
)  # fmt: skip
def test_stages_follow_each_other(
    scheduled: Any, started: Any, learner: Any, wanted: dict[str, float]
) -> None:
    status = described(members=pods(scheduled, started), beginning=told(learner))
    assert known(status.last_heal.stages) == wanted


moments = st.floats(-1000, 1000)


@given(moments, moments, moments, moments, st.floats(0, 1000))
def test_whatever_the_clocks_say_no_stage_is_negative_and_their_sum_is_the_heal(
    scheduled: float, started: float, joined: float, stepped: float, compiling: float
) -> None:
    learner = told({"joined": joined, "stepped": stepped, "compiling": compiling})
    stages = known(described(members=pods(scheduled, started), beginning=learner).last_heal.stages)
    assert min(stages.values()) >= 0
    assert sum(stages.values()) == pytest.approx(SECONDS, abs=0.05)


def test_a_merge_that_is_told_before_the_first_step_leaves_stages_open_until_that_is_known() -> None:
    first = described(members=pods(3, 5))
    other = described(first, pods(3, 5), incarnation=2, beginning=told(TOLD))
    assert (first.last_heal.stages.catch_up, other.last_heal.stages.catch_up) == (None, None), (
        "of another one"
    )
    assert described(other, pods(3, 5), beginning=told(TOLD)).last_heal.stages.catch_up == 5


def test_a_heal_ends_with_the_first_merge_and_says_what_it_cost() -> None:
    earlier = described(incarnation=2)
    assert earlier.last_heal is None, "merges of the old incarnation are none of it"
    waits = transition((), {"Healing": state(True, "BackOff")}, 1, NOW)
    back = described(HURT.model_copy(update={"conditions": waits}))
    assert (back.last_heal, back.phase) == (None, "Learning"), "it came back by itself before its next try"
    status = described(step=1, loss=3.0, step_seconds=0.25)
    heal, lost = status.last_heal, status.lost
    assert (heal.reason, heal.seconds, heal.chip_seconds, heal.steps) == ("AppError", 40.0, 320.0, 160)
    assert lost.by_reason["AppError"].steps == 160
    assert find(status.conditions, "Seeded").message == "from the global checkpoint of step 40"
    assert (status.phase, status.merged_incarnation, status.heal_start_time) == ("Learning", 3, None)
    every = {"Scheduled", "PodsReady", "Seeded", "Learning", "Healing", "Draining", "LinkAdequate", "Suspect"}
    assert {each.type for each in status.conditions} == every
    assert described(status).last_heal == heal


def test_a_unit_that_a_peer_may_have_seeded_says_what_it_was_told() -> None:
    peer = {"recovery": RecoverySpec(seed="Peer")}
    seeded = find(described(unit=peer, seed_message="seeded from peer r-one-0").conditions, "Seeded")
    assert (seeded.reason, seeded.message) == ("Seeded", "at global step 40; seeded from peer r-one-0")


def test_the_ledger_is_as_last_known_and_final_when_the_run_is() -> None:
    ledger = {"r-two-0": LedgerReport(trained=80, merged=60, discarded={"Finished": 20})}
    waits = [WaitReport(fragment=1, tokens=8, since=1, what="its link")]
    units = {"r-two-0": UnitReport(incarnation=3, hosts=2, state="Learning", waits=waits)}
    report = SyncerStatus(run_uid="u", phase="Finished", fragments=4, ledger=ledger, units=units)
    syncer = replace(SyncerState().heard(report, NOW), merged=240)
    unit = replace(learner_unit(), status=HURT, stop="Finished", syncer=syncer)
    status = plan_unit(unit).status
    known = {"trained": 80, "merged": 60, "discarded": {"Finished": 20}, "waits": tuple(waits)}
    assert status.ledger == LedgerStatus(fragments=4, **known)
    assert status.share_percent == 25.0, "of the tokens that were merged"
    assert plan_unit(replace(unit, status=status, syncer=SyncerState())).status.ledger == status.ledger


LINK = LinkReport(codec="bf16", period=1, up_gbps=2.1, down_gbps=1.9, rtt_seconds=0.08, load=0.4)
FIGURES = "2.1 Gbit/s up, 1.9 down, round trip 80 ms; transfers of every round take 40% of an interval"
WHOLE = f"bf16, part in every round; {FIGURES}"


@pytest.mark.parametrize(
    ("changes", "fixed", "condition"),
    [
        ({"load": 0}, {}, ("Unknown", "NotMeasured", "too little was sent yet to measure the link by")),
        ({}, {}, ("True", "Adequate", WHOLE)),
        ({"reason": "fits"}, {}, ("True", "Adequate", f"{WHOLE}: fits")),
        ({"codec": "int8"}, {}, ("True", "Narrowed", WHOLE.replace("bf16", "int8"))),
        ({"period": 2.5}, {}, ("False", "LinkTooSlow", f"bf16, part in one of 2.5 rounds; {FIGURES}")),
        ({"period": 2.5}, {"period": 2}, ("False", "LinkTooSlow", None)),
        ({"period": 4}, {"period": 4}, ("True", "Adequate", None)),
        ({"advice": "set codec int4"}, {"codec": "bf16"}, ("False", "SettingTooWide", f"set codec int4; {WHOLE}")),
        ({"advice": "set codec int4", "period": 3}, {}, ("False", "SettingTooWide", None)),
    ],
)  # fmt: skip
def test_a_unit_says_whether_its_link_carries_what_its_run_asks(
    changes: Any, fixed: Any, condition: Any
) -> None:
    unit = {"communication": CommunicationSpec(**fixed)}
    found = find(described(unit=unit, link=LINK.model_copy(update=changes)).conditions, "LinkAdequate")
    assert (found.status, found.reason, condition[2] and found.message) == condition


CHANGES: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []), ({"load": 0.5}, []), ({"codec": "int8"}, ["Normal Narrowed"]), ({"period": 3}, ["Warning LinkTooSlow"]),
    ({"advice": "set period 3"}, ["Warning SettingTooWide"]), ({}, ["Normal Adequate"]), ({"load": 0}, []),
]  # fmt: skip


def test_a_link_that_is_not_adequate_any_more_is_an_event_and_so_is_its_return() -> None:
    old = transition((), link.adequate(None, "bf16", CommunicationSpec()), 1, NOW)
    for change, events in CHANGES:
        states = link.adequate(LINK.model_copy(update=change), "bf16", CommunicationSpec())
        new = transition(old, states, 1, NOW)
        assert [f"{each.type} {each.reason}" for each in link.notices(old, new)] == events, change
        old = new


def test_the_link_is_as_the_unit_told_last_also_after_it_has_gone() -> None:
    own = LinkReport(up_gbps=1.23456, down_gbps=0.5, rtt_seconds=0.0420001, busy_share=0.6, failures=3)
    status = described(link=own, refusals={"norm": 2})
    shown = own.model_copy(update={"up_gbps": 1.23, "rtt_seconds": 0.042})
    assert (status.link, status.refusals) == (shown, {"norm": 2})
    assert described(status, state="Gone", hosts=0).link == shown

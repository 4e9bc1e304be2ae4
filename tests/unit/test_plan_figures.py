"""Figures of a status: traffic, shares, what failures cost."""

from __future__ import annotations

import pytest

from atoll_operator.api.common import MAX_REASONS, Cost, CostStatus
from atoll_operator.plan import cost, ledger
from atoll_operator.plan.run.shards import combine
from atoll_operator.plan.run.syncer_state import SyncerState, heard
from atoll_runtime.contract import LedgerReport, SyncerStatus


def report(time: float, received: int, sent: int = 0, shard: int = 0) -> SyncerStatus:
    return SyncerStatus(
        run_uid="u", phase="Running", bytes_in=received, bytes_out=sent, time=time, shard=shard
    )


def after(reports: list[SyncerStatus]) -> SyncerState:
    state = SyncerState()
    for each in reports:
        state = heard(state, each, each.time, each.time)
    return state


def test_traffic_is_a_mean_that_follows_a_steady_rate() -> None:
    steady = [report(2.0 * i, 500_000_000 * i, 250_000_000 * i) for i in range(120)]
    state = after(steady)
    assert state.traffic.into == pytest.approx(2.0, rel=0.01)  # 0.25 GB/s
    assert state.traffic.out == pytest.approx(1.0, rel=0.01)


def test_a_shard_that_starts_anew_has_no_negative_traffic_and_the_same_report_changes_nothing() -> None:
    before = after([report(0, 0), report(2, 10**9)])
    assert heard(before, report(4, 10), 4, 4).traffic == before.traffic
    assert heard(before, report(2, 10**9), 3, 3).traffic == before.traffic


def test_the_traffic_of_shards_that_answer_is_added_up() -> None:
    one, two = (after([report(0, 0, shard=s), report(2, 10**9, shard=s)]) for s in (0, 1))
    both = combine([one, two])
    assert both.traffic.into == pytest.approx(2 * one.traffic.into)
    silent = SyncerState(status=two.status, reason="SyncerUnavailable", traffic=two.traffic)
    assert combine([one, silent]).traffic.into == pytest.approx(one.traffic.into)


def test_shares_are_of_the_tokens_that_were_merged() -> None:
    one, two = LedgerReport(trained=90, merged=30), LedgerReport(trained=90, merged=60)
    state = heard(SyncerState(), report(1, 0).model_copy(update={"ledger": {"a": one, "b": two}}), 0.0, 0.0)
    assert ledger.share(two, state.merged) == pytest.approx(2 / 3)
    assert ledger.share(two, combine([state, state]).merged) == pytest.approx(1 / 3)
    assert ledger.share(None, state.merged) is None
    assert ledger.share(LedgerReport(trained=5, merged=0), 0) is None


def test_the_cost_of_failures_adds_up_in_all_and_by_reason() -> None:
    first = cost.of_heal(30.0, chips=16, step_seconds=0.5)
    assert first == Cost(failures=1, seconds=30.0, chip_seconds=480.0, steps=60)
    second = cost.of_heal(10.0, chips=16, step_seconds=0.0)
    both = cost.with_heal(cost.with_heal(None, "Hang", first), "NodeLost", second)
    assert both.by_reason == {"Hang": first, "NodeLost": second}
    whole = {"failures": 2, "seconds": 40.0, "chip_seconds": 640.0, "steps": 60}
    assert both.model_dump(exclude={"by_reason"}) == whole
    assert cost.total([], ()) == CostStatus()


def test_more_reasons_than_have_room_are_one_and_names_stay() -> None:
    one = cost.of_heal(1.0, chips=1, step_seconds=1.0)
    lost: CostStatus | None = None
    for number in range(20):
        lost = cost.with_heal(lost, f"Reason{number:02}", one)
    lost = cost.with_heal(lost, "Reason03", one)
    assert lost is not None
    assert len(lost.by_reason) == MAX_REASONS
    assert (lost.by_reason["Reason03"].failures, lost.by_reason["Other"].failures) == (2, 5)
    assert lost.failures == 21

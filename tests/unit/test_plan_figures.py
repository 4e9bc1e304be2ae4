"""Figures of a status: traffic, shares, what failures cost."""

from __future__ import annotations

import pytest

from atoll_operator.api.common import CostStatus
from atoll_operator.plan import cost, ledger
from atoll_operator.plan.shards import FeedState, combine, heard
from atoll_runtime.contract import LedgerReport, SyncerStatus


def report(time: float, received: int, sent: int = 0, shard: int = 0) -> SyncerStatus:
    return SyncerStatus(
        run_uid="u", phase="Running", bytes_in=received, bytes_out=sent, time=time, shard=shard
    )


def after(reports: list[SyncerStatus]) -> FeedState:
    state = FeedState()
    for each in reports:
        state = heard(state, each, each.time)
    return state


def test_traffic_is_a_mean_that_follows_a_steady_rate() -> None:
    steady = [report(2.0 * i, 500_000_000 * i, 250_000_000 * i) for i in range(120)]
    state = after(steady)
    assert state.traffic.into == pytest.approx(2.0, rel=0.01)  # 0.25 GB/s
    assert state.traffic.out == pytest.approx(1.0, rel=0.01)


def test_a_shard_that_starts_anew_has_no_negative_traffic_and_the_same_report_changes_nothing() -> None:
    before = after([report(0, 0), report(2, 10**9)])
    assert heard(before, report(4, 10), 4).traffic == before.traffic
    assert heard(before, report(2, 10**9), 3).traffic == before.traffic


def test_the_traffic_of_shards_that_answer_is_added_up() -> None:
    one, two = (after([report(0, 0, shard=s), report(2, 10**9, shard=s)]) for s in (0, 1))
    both = combine([one, two])
    assert both.traffic.into == pytest.approx(2 * one.traffic.into)
    silent = FeedState(status=two.status, reason="SyncerUnavailable", traffic=two.traffic)
    assert combine([one, silent]).traffic.into == pytest.approx(one.traffic.into)


def test_shares_are_of_the_tokens_that_were_merged() -> None:
    merged = {"a": LedgerReport(trained=90, merged=30), "b": LedgerReport(trained=90, merged=60)}
    assert ledger.share(merged, "b") == pytest.approx(2 / 3)
    assert ledger.share(merged, "c") is None
    assert ledger.share({"a": LedgerReport(trained=5, merged=0)}, "a") is None


def test_the_cost_of_failures_adds_up() -> None:
    first = cost.with_heal(None, 30.0, chips=16, step_seconds=0.5)
    assert first == CostStatus(failures=1, seconds=30.0, chip_seconds=480.0, steps=60)
    second = cost.with_heal(first, 10.0, chips=16, step_seconds=0.0)
    assert second == CostStatus(failures=2, seconds=40.0, chip_seconds=640.0, steps=60)
    assert cost.total([]) == CostStatus()

"""The syncer's state from those of its shards: tables, and properties over any reports of any shards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.api.common import MAX_REASONS
from atoll_operator.plan import ledger
from atoll_operator.plan.run.shards import combine
from atoll_operator.plan.run.syncer_state import SyncerState, finishing, heard
from atoll_runtime.contract import CheckpointReport, LedgerReport, SyncerStatus, UnitReport

NOW = 1_700_000_000.0
UNKNOWN = SyncerState(reason="SyncerUnavailable", message="the syncer does not answer")


def status(phase: Any = "Running", **changes: Any) -> SyncerStatus:
    return SyncerStatus(**({"run_uid": "u", "phase": phase, "global_step": 10, "fragments": 4} | changes))


def answers(phase: Any = "Running", **changes: Any) -> SyncerState:
    return SyncerState(status=status(phase, **changes), answering_since=NOW)


def silent(**changes: Any) -> SyncerState:
    """A shard that answered once and does not now."""
    return SyncerState(status=status(**changes), reason=UNKNOWN.reason, message=UNKNOWN.message)


def unit(incarnation: int = 2, **changes: Any) -> UnitReport:
    values = {"hosts": 2, "state": "Learning", "contributions": 3, "first_merge_time": NOW}
    return UnitReport(incarnation=incarnation, **(values | changes))


@pytest.mark.parametrize(
    ("shards", "phase"),
    [
        pytest.param([answers("Finished"), answers("Finished")], "Finished", id="all-finished"),
        pytest.param([answers("Finished"), answers()], "Finishing", id="one-finished"),
        pytest.param([answers("Finished"), UNKNOWN], "Finishing", id="one-finished-one-unknown"),
        pytest.param([answers("Finished"), silent(phase="Finished")], "Finished", id="finished-and-silent"),
        pytest.param([answers(), answers("Finishing")], "Finishing", id="one-finishing"),
        pytest.param([answers(), answers("Failed")], "Failed", id="one-failed"),
        pytest.param([answers("Finished"), answers("Failed")], "Failed", id="failed-at-the-end"),
        pytest.param([answers(), answers("Starting")], "Running", id="one-starts"),
        pytest.param([answers("Starting"), answers("Starting")], "Starting", id="all-start"),
        pytest.param([UNKNOWN, answers("Starting")], "Starting", id="none-runs"),
    ],
)
def test_phase_is_that_of_all_shards(shards: list[SyncerState], phase: str) -> None:
    assert combine(shards).status.phase == phase


def test_figures_are_those_of_the_shard_behind_or_sums() -> None:
    first = {
        "global_step": 20, "tokens": 900, "bytes_in": 5, "bytes_out": 1, "restarts": 1, "rounds": 7, "time": 5.0,
        "quorum": "3/3 (K=1)", "loss": 2.0, "shard": 0,
    }  # fmt: skip
    second = {
        "global_step": 12, "tokens": 500, "bytes_in": 6, "bytes_out": 2, "restarts": 2, "rounds": 5, "time": 9.0,
        "quorum": "1/3 (K=1)", "loss": 3.0, "shard": 1,
    }  # fmt: skip
    both = combine([answers(**first), answers(**second)]).status
    assert (both.global_step, both.tokens, both.quorum, both.time) == (12, 500, "1/3 (K=1)", 5.0)
    assert (both.bytes_in, both.bytes_out, both.restarts, both.rounds) == (11, 3, 3, 12)
    assert (both.loss, both.shard, both.shards) == (3.0, 0, 2)


def test_silent_and_unknown_shards_are_named_and_keep_their_step() -> None:
    state = combine([answers(global_step=20, message="waits for demo-a-0"), silent(global_step=12)])
    assert (state.answers, state.down) == (True, "shard 1: the syncer does not answer")
    assert state.status.global_step == 12
    assert state.status.message == "shard 0: waits for demo-a-0; shard 1: the syncer does not answer"
    assert combine([answers(), SyncerState()]).down == "shard 1: has not answered yet"


def test_shard_that_starts_again_keeps_its_figures_but_no_units() -> None:
    before = answers(global_step=12, tokens=500, restarts=1, units={"a": unit()})
    starting = status("Starting", global_step=0, fragments=0, message="reads the journal")
    again = heard(before, starting, NOW + 5, 5)
    assert (again.status.global_step, again.status.tokens, again.status.units) == (12, 500, {})
    state = combine([answers(global_step=20, tokens=900, units={"a": unit()}), again])
    assert state.down == "shard 1: starts: reads the journal"
    assert (state.status.phase, state.status.global_step, state.status.tokens) == ("Running", 12, 500)
    assert state.status.units["a"].state == "Learning"


def test_shards_without_tensors_or_before_their_first_start_have_no_part_in_the_figures() -> None:
    idle = answers(global_step=0, fragments=0, units={"a": unit(state="Joining", contributions=0)})
    state = combine([answers(global_step=20, units={"a": unit()}), idle])
    assert (state.status.global_step, state.status.units["a"].state) == (20, "Learning")
    assert (
        combine([answers(global_step=20), answers("Starting", global_step=0, fragments=0)]).status.global_step
        == 20
    )


def test_if_no_shard_answers_the_worst_reason_is_reported() -> None:
    wrong = SyncerState(reason="SyncerCertificateInvalid", message="not this run's")
    state = combine([silent(), wrong])
    assert (state.answers, state.reason, state.down) == (False, "SyncerCertificateInvalid", "")
    assert state.message == "shard 0: the syncer does not answer; shard 1: not this run's"
    assert state.status.global_step == 10


def test_checkpoints_are_those_of_the_first_shard_and_messages_those_of_failed_shards() -> None:
    first = CheckpointReport(newest_step=100, uri="gs://b")
    second = CheckpointReport(newest_step=50, uri="gs://b", error="x")
    shards = [answers(checkpoint=first), answers(checkpoint=second)]
    assert combine(shards).status.checkpoint == first
    failed = combine([answers(message="waits"), answers("Failed", message="the volume is full")])
    assert failed.status.message == "shard 1: the volume is full"


def test_equal_messages_are_shown_once_and_many_are_cut() -> None:
    assert combine([answers(message="waits")] * 2).status.message == "waits"
    many = combine([answers(message=f"waits for {n % 7}") for n in range(64)]).status.message
    assert many.startswith("shards 0, 7, 14")
    assert many.endswith("; and 3 more")


@pytest.mark.parametrize(
    ("second", "wanted"),
    [
        pytest.param(unit(hosts=1), {"state": "Learning", "hosts": 1}, id="a-host-is-missing"),
        pytest.param(unit(state="Joining", contributions=0), {"state": "Joining", "contributions": 0}, id="not-merged"),
        pytest.param(unit(state="Gone", hosts=0), {"state": "Gone", "hosts": 0}, id="not-connected"),
        pytest.param(unit(1), {"state": "Joining", "hosts": 0, "incarnation": 2}, id="knows-the-old-one"),
        pytest.param(None, {"state": "Joining", "hosts": 0, "first_merge_time": None}, id="knows-none"),
        pytest.param(unit(first_merge_time=NOW + 9), {"first_merge_time": NOW + 9}, id="merged-later"),
        pytest.param(unit(first_merge_time=None), {"first_merge_time": None}, id="not-merged-yet"),
        pytest.param(unit(staleness=7), {"staleness": 7}, id="stale"),
        pytest.param(unit(seeded_step=40, seed_message="m"), {"seeded_step": 40, "seed_message": "m"}, id="seeded"),
    ],
)  # fmt: skip
def test_unit_is_as_the_shard_sees_it_that_has_least_of_it(
    second: UnitReport | None, wanted: dict[str, Any]
) -> None:
    reports = [answers(units={"a": unit()}), answers(units={"a": second} if second else {})]
    for shards in (reports, reports[::-1]):
        found = combine(shards).status.units["a"]
        assert {key: getattr(found, key) for key in wanted} == wanted


counts = st.integers(0, 10**12)
ledgers = st.builds(
    lambda merged, in_flight, discarded: LedgerReport(
        trained=merged + in_flight + sum(discarded.values()),
        merged=merged,
        in_flight=in_flight,
        discarded=discarded,
    ),
    counts,
    counts,
    st.dictionaries(st.sampled_from(["Overwritten", "Missed", "Replaced", "Finished"]), counts),
)
names = st.sampled_from(["a", "b", "c"])
units = st.builds(
    UnitReport,
    incarnation=st.integers(1, 3),
    hosts=st.integers(0, 4),
    state=st.sampled_from(["Joining", "Learning", "Gone"]),
    contributions=st.integers(0, 9),
    staleness=st.integers(0, 9),
    first_merge_time=st.none() | st.floats(NOW, NOW + 9),
)
statuses = st.builds(
    SyncerStatus,
    run_uid=st.just("u"),
    phase=st.sampled_from(["Starting", "Running", "Finishing", "Finished", "Failed"]),
    message=st.sampled_from(["", "waits", "stalls"]),
    global_step=st.integers(0, 100),
    tokens=counts,
    bytes_in=counts,
    fragments=st.integers(1, 24),
    units=st.dictionaries(names, units),
    ledger=st.dictionaries(names, ledgers),
)
states = st.one_of(
    st.just(SyncerState()),
    st.just(UNKNOWN),
    st.builds(lambda report: SyncerState(status=report, answering_since=NOW), statuses),
    st.builds(lambda report: SyncerState(status=report, reason="SyncerUnavailable", message="m"), statuses),
)


@given(st.lists(states, min_size=1, max_size=6))
def test_whatever_shards_report_nothing_is_shown_that_is_not_true_of_all(shards: list[SyncerState]) -> None:
    state = combine(shards)
    known = [shard.status for shard in shards if shard.status is not None]
    assert state.answers == any(shard.answers for shard in shards)
    if len(shards) == 1:
        assert state == shards[0]
        return
    assert bool(state.down) == (state.answers and not all(shard.serves for shard in shards))
    if state.status is None:
        assert not known
        return
    assert state.status.global_step == min(report.global_step for report in known)
    assert state.status.tokens == min(report.tokens for report in known)
    finished = len(known) == len(shards) and all(report.phase == "Finished" for report in known)
    assert (state.status.phase == "Finished") == finished
    serving = [shard.status for shard in shards if shard.serves]
    assert set(state.status.units) == {name for report in serving for name in report.units}
    for name, found in state.status.units.items():
        seen = [report.units.get(name) for report in serving]
        current = [each for each in seen if each is not None and each.incarnation == found.incarnation]
        assert current
        if found.state == "Learning":
            assert len(current) == len(serving)
            assert all(each.state == "Learning" for each in current)
    both = ledger.add(state.status.ledger.values())
    assert both.trained == both.merged + both.in_flight + sum(both.discarded.values())
    assert both.trained == sum(each.trained for report in known for each in report.ledger.values())
    assert state.status.fragments == sum(report.fragments for report in known)


def test_ledger_adds_up_the_smallest_reasons_that_have_no_room() -> None:
    report = LedgerReport(trained=500, discarded={f"R{n:02}": n for n in range(1, 31)}, in_flight=35)
    shown = ledger.shown(report, 4)
    assert len(shown.discarded) == MAX_REASONS
    assert sum(shown.discarded.values()) + shown.in_flight == shown.trained == 500
    assert (shown.discarded["R30"], shown.discarded["Other"]) == (30, sum(range(1, 16)))


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [
        (["Running"], False), (["Finishing"], True), (["Finished"], True),
        (["Finishing", "Running"], False), (["Finishing", "Finishing"], False),
        (["Finishing", "Finished"], False), (["Finished", "Finished"], True),
    ],
)  # fmt: skip
def test_several_shards_need_units_until_the_last_one_has_finished(phases: list[Any], wanted: bool) -> None:
    """Learners alone tell them of each other's clocks and of the final checkpoint."""
    assert finishing(combine([answers(phase) for phase in phases]).status) == wanted

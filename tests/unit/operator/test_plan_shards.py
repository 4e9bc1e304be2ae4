"""The syncer's state from those of its shards: tables, and properties over any reports of any shards."""

from __future__ import annotations

from typing import Any

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


PHASES = [
    ([answers("Finished"), answers("Finished")], "Finished"),
    ([answers("Finished"), answers()], "Finishing"),
    ([answers("Finished"), UNKNOWN], "Finishing"),
    ([answers("Finished"), silent(phase="Finished")], "Finished"),
    ([answers(), answers("Finishing")], "Finishing"),
    ([answers(), answers("Failed")], "Failed"),
    ([answers("Finished"), answers("Failed")], "Failed"),
    ([answers(), answers("Starting")], "Running"),
    ([answers("Starting"), answers("Starting")], "Starting"),
    ([UNKNOWN, answers("Starting")], "Starting"),
]


def test_phase_is_that_of_all_shards() -> None:
    assert [combine(shards).status.phase for shards, _ in PHASES] == [phase for _, phase in PHASES]


def test_figures_are_those_of_the_shard_behind_or_sums() -> None:
    first = {
        "global_step": 20,
        "tokens": 900,
        "bytes_in": 5,
        "restarts": 1,
        "time": 5.0,
        "quorum": "3/3",
        "loss": 2.0,
    }
    second = {
        "global_step": 12,
        "tokens": 500,
        "bytes_in": 6,
        "restarts": 2,
        "time": 9.0,
        "quorum": "1/3",
        "loss": 3.0,
    }
    both = combine([answers(**first), answers(**second, shard=1)]).status
    assert (both.global_step, both.tokens, both.quorum, both.time, both.loss) == (12, 500, "1/3", 5.0, 2.0)
    assert (both.bytes_in, both.restarts, both.fragments, both.shard, both.shards) == (11, 3, 8, 0, 2)


def test_silent_unknown_and_starting_shards_are_named_and_keep_their_figures() -> None:
    state = combine([answers(global_step=20, message="waits for a"), silent(global_step=12)])
    assert (state.answers, state.down, state.status.global_step) == (
        True,
        "shard 1: the syncer does not answer",
        12,
    )
    assert state.status.message == "shard 0: waits for a; shard 1: the syncer does not answer"
    assert combine([answers(), SyncerState()]).down == "shard 1: has not answered yet"
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
    found = combine([answers(global_step=20, units={"a": unit()}), idle]).status
    assert (found.global_step, found.units["a"].state) == (20, "Learning")
    starting = answers("Starting", global_step=0, fragments=0)
    assert combine([answers(global_step=20), starting]).status.global_step == 20


def test_if_no_shard_answers_the_worst_reason_is_reported() -> None:
    wrong = SyncerState(reason="SyncerCertificateInvalid", message="not this run's")
    state = combine([silent(), wrong])
    assert (state.answers, state.reason, state.down) == (False, "SyncerCertificateInvalid", "")
    assert state.message == "shard 0: the syncer does not answer; shard 1: not this run's"


def test_checkpoints_are_those_of_the_first_shard_and_messages_are_grouped() -> None:
    first = CheckpointReport(newest_step=100, uri="gs://b")
    second = CheckpointReport(newest_step=50, uri="gs://b", error="x")
    assert combine([answers(checkpoint=first), answers(checkpoint=second)]).status.checkpoint == first
    failed = combine([answers(message="waits"), answers("Failed", message="the volume is full")])
    assert failed.status.message == "shard 1: the volume is full"
    assert combine([answers(message="waits")] * 2).status.message == "waits"
    many = combine([answers(message=f"waits for {n % 7}") for n in range(64)]).status.message
    assert many.startswith("shards 0, 7, 14") and many.endswith("; and 3 more")


SEEN: list[tuple[UnitReport | None, dict[str, Any]]] = [
    (unit(hosts=1), {"state": "Learning", "hosts": 1}),
    (unit(state="Joining", contributions=0), {"state": "Joining", "contributions": 0}),
    (unit(state="Gone", hosts=0), {"state": "Gone", "hosts": 0}),
    (unit(1), {"state": "Joining", "hosts": 0, "incarnation": 2}),
    (None, {"state": "Joining", "hosts": 0, "first_merge_time": None}),
    (unit(first_merge_time=NOW + 9), {"first_merge_time": NOW + 9}),
    (unit(first_merge_time=None), {"first_merge_time": None}),
    (unit(staleness=7), {"staleness": 7}),
    (unit(seeded_step=40, seed_message="m"), {"seeded_step": 40, "seed_message": "m"}),
]


def test_unit_is_as_the_shard_sees_it_that_has_least_of_it() -> None:
    for second, wanted in SEEN:
        reports = [answers(units={"a": unit()}), answers(units={"a": second} if second else {})]
        for shards in (reports, reports[::-1]):
            found = combine(shards).status.units["a"]
            assert {key: getattr(found, key) for key in wanted} == wanted


def ledger_of(merged: int, in_flight: int, discarded: dict[str, int]) -> LedgerReport:
    trained = merged + in_flight + sum(discarded.values())
    return LedgerReport(trained=trained, merged=merged, in_flight=in_flight, discarded=discarded)


counts = st.integers(0, 10**12)
ledgers = st.builds(
    ledger_of, counts, counts, st.dictionaries(st.sampled_from(["Overwritten", "Missed", "Finished"]), counts)
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


def test_several_shards_need_units_until_the_last_one_has_finished() -> None:
    """Learners alone tell them of each other's clocks and of the final checkpoint."""
    needed = [["Running"], ["Finishing", "Running"], ["Finishing", "Finishing"], ["Finishing", "Finished"]]
    over: list[Any] = [["Finishing"], ["Finished"], ["Finished", "Finished"]]
    for phases in (*needed, *over):
        state = combine([answers(phase) for phase in phases])
        assert finishing(state.status) == (phases in over), phases

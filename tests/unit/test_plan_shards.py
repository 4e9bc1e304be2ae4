"""What the shards say together: by tables, and by properties over any answers of any shards."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_operator.api.common import MAX_REASONS
from atoll_operator.plan import ledger
from atoll_operator.plan.run.shards import FeedState, combine, finishing, heard
from atoll_runtime.contract import CheckpointReport, LedgerReport, SyncerStatus, UnitReport

NOW = 1_700_000_000.0
GONE = FeedState(reason="SyncerUnavailable", message="the syncer does not answer")


def status(phase: Any = "Running", **changes: Any) -> SyncerStatus:
    return SyncerStatus(**({"run_uid": "u", "phase": phase, "global_step": 10, "fragments": 4} | changes))


def says(phase: Any = "Running", **changes: Any) -> FeedState:
    return FeedState(status=status(phase, **changes), answering_since=NOW)


def silent(**changes: Any) -> FeedState:
    """A shard that answered once and does not now."""
    return FeedState(status=status(**changes), reason=GONE.reason, message=GONE.message)


def unit(incarnation: int = 2, **changes: Any) -> UnitReport:
    values = {"hosts": 2, "state": "Learning", "contributions": 3, "first_merge_time": NOW}
    return UnitReport(incarnation=incarnation, **(values | changes))


@pytest.mark.parametrize(
    ("shards", "phase"),
    [
        pytest.param([says("Finished"), says("Finished")], "Finished", id="all-finished"),
        pytest.param([says("Finished"), says()], "Finishing", id="one-finished"),
        pytest.param([says("Finished"), GONE], "Finishing", id="one-finished-one-unknown"),
        pytest.param([says("Finished"), silent(phase="Finished")], "Finished", id="finished-and-gone"),
        pytest.param([says(), says("Finishing")], "Finishing", id="one-finishing"),
        pytest.param([says(), says("Failed")], "Failed", id="one-failed"),
        pytest.param([says("Finished"), says("Finished"), says("Failed")], "Failed", id="failed-at-the-end"),
        pytest.param([says(), says("Starting")], "Running", id="one-starts"),
        pytest.param([says("Starting"), says("Starting")], "Starting", id="all-start"),
        pytest.param([GONE, says("Starting")], "Starting", id="none-runs"),
    ],
)
def test_a_run_is_as_far_as_all_its_shards_are(shards, phase) -> None:
    assert combine(shards).status.phase == phase


def test_the_shard_that_is_behind_is_where_the_model_is() -> None:
    both = combine(
        [
            says(
                global_step=20, tokens=900, bytes_in=5, bytes_out=1, restarts=1, rounds=7, quorum="3/3 (K=1)"
            ),
            says(
                global_step=12, tokens=500, bytes_in=6, bytes_out=2, restarts=2, rounds=5, quorum="1/3 (K=1)"
            ),
        ]
    ).status
    assert (both.global_step, both.tokens, both.quorum) == (12, 500, "1/3 (K=1)")
    assert (both.bytes_in, both.bytes_out, both.restarts, both.rounds) == (11, 3, 3, 12)


def test_a_shard_that_is_silent_keeps_its_step_and_is_named() -> None:
    feed = combine([says(global_step=20, message="waits for demo-a-0"), silent(global_step=12)])
    assert feed.answers
    assert feed.down == "shard 1: the syncer does not answer"
    assert feed.status.global_step == 12
    assert feed.status.message == "shard 0: waits for demo-a-0; shard 1: the syncer does not answer"


def test_a_shard_that_was_never_heard_of_is_named_too() -> None:
    assert combine([says(), FeedState()]).down == "shard 1: has not answered yet"


def test_a_shard_that_starts_again_keeps_its_figures_and_serves_nobody() -> None:
    before = says(global_step=12, tokens=500, restarts=1, units={"a": unit()})
    again = heard(
        before, status("Starting", global_step=0, fragments=0, message="reads the journal"), NOW + 5, 5
    )
    assert (again.status.global_step, again.status.tokens, again.status.units) == (12, 500, {})
    feed = combine([says(global_step=20, tokens=900, units={"a": unit()}), again])
    assert feed.down == "shard 1: starts: reads the journal"
    assert (feed.status.phase, feed.status.global_step, feed.status.tokens) == ("Running", 12, 500)
    assert feed.status.units["a"].state == "Learning"


def test_a_shard_that_starts_for_the_first_time_has_no_part_in_the_figures() -> None:
    feed = combine([says(global_step=20), says("Starting", global_step=0, fragments=0)])
    assert feed.status.global_step == 20


def test_shards_without_tensors_hold_nobody_back() -> None:
    idle = says(global_step=0, fragments=0, units={"a": unit(state="Joining", contributions=0)})
    feed = combine([says(global_step=20, units={"a": unit()}), idle])
    assert (feed.status.global_step, feed.status.units["a"].state) == (20, "Learning")


def test_no_shard_answers_when_none_does_and_the_worst_reason_is_told() -> None:
    wrong = FeedState(reason="SyncerCertificateInvalid", message="not this run's")
    feed = combine([silent(), wrong])
    assert not feed.answers
    assert (feed.reason, feed.down) == ("SyncerCertificateInvalid", "")
    assert feed.message == "shard 0: the syncer does not answer; shard 1: not this run's"
    assert feed.status.global_step == 10


def test_the_first_shard_tells_of_checkpoints() -> None:
    cut = CheckpointReport(newest_step=100, uri="gs://b")
    shards = [
        says(checkpoint=cut),
        says(checkpoint=CheckpointReport(newest_step=50, uri="gs://b", error="x")),
    ]
    assert combine(shards).status.checkpoint == cut


def test_a_failure_is_told_in_the_words_of_the_shard_that_failed() -> None:
    feed = combine([says(message="waits"), says("Failed", message="the volume is full")])
    assert feed.status.message == "shard 1: the volume is full"


def test_what_all_shards_say_is_said_once_and_what_many_say_is_cut() -> None:
    assert combine([says(message="waits for a"), says(message="waits for a")]).status.message == "waits for a"
    many = combine([says(message=f"waits for {n % 7}") for n in range(64)]).status.message
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
def test_a_unit_is_where_the_shard_sees_it_that_has_the_least_of_it(second, wanted) -> None:
    reports = [says(units={"a": unit()}), says(units={"a": second} if second else {})]
    for shards in (reports, reports[::-1]):
        found = combine(shards).status.units["a"]
        assert {key: getattr(found, key) for key in wanted} == wanted


def test_units_are_those_that_the_answering_shards_see() -> None:
    feed = combine([says(units={"a": unit(3)}), silent(units={"a": unit(2), "b": unit()})])
    assert set(feed.status.units) == {"a"}
    assert (feed.status.units["a"].incarnation, feed.status.units["a"].state) == (3, "Learning")


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
feeds = st.one_of(
    st.just(FeedState()),
    st.just(GONE),
    st.builds(lambda report: FeedState(status=report, answering_since=NOW), statuses),
    st.builds(lambda report: FeedState(status=report, reason="SyncerUnavailable", message="m"), statuses),
)


@given(feeds)
def test_one_shard_is_the_syncer(feed) -> None:
    assert combine([feed]) == feed


@given(st.lists(feeds, min_size=2, max_size=6))
def test_whatever_shards_say_nothing_is_told_that_is_not_true_of_all(shards) -> None:
    feed = combine(shards)
    known = [shard.status for shard in shards if shard.status is not None]
    assert feed.answers == any(shard.answers for shard in shards)
    assert bool(feed.down) == (feed.answers and not all(shard.serves for shard in shards))
    if feed.status is None:
        assert not known
        return
    assert feed.status.global_step == min(report.global_step for report in known)
    assert feed.status.tokens == min(report.tokens for report in known)
    assert (feed.status.phase == "Finished") == (
        len(known) == len(shards) and all(report.phase == "Finished" for report in known)
    )
    serving = [shard.status for shard in shards if shard.serves]
    for name, found in feed.status.units.items():
        seen = [report.units.get(name) for report in serving]
        current = [each for each in seen if each is not None and each.incarnation == found.incarnation]
        assert current
        if found.state == "Learning":
            assert len(current) == len(serving)
            assert all(each.state == "Learning" for each in current)


@given(st.lists(feeds, min_size=2, max_size=6))
def test_a_ledger_of_balanced_parts_balances_and_loses_nothing(shards) -> None:
    feed = combine(shards)
    known = [shard.status for shard in shards if shard.status is not None]
    if feed.status is None:
        return
    both = ledger.add(feed.status.ledger.values())
    assert both.trained == both.merged + both.in_flight + sum(both.discarded.values())
    assert both.trained == sum(each.trained for report in known for each in report.ledger.values())
    assert feed.status.fragments == sum(report.fragments for report in known)


def test_reasons_beyond_what_a_status_holds_are_added_up() -> None:
    report = LedgerReport(trained=500, discarded={f"R{n:02}": n for n in range(1, 31)}, in_flight=35)
    shown = ledger.shown(report, 4)
    assert len(shown.discarded) == MAX_REASONS
    assert sum(shown.discarded.values()) + shown.in_flight == shown.trained == 500
    assert shown.discarded["R30"] == 30
    assert shown.discarded["Other"] == sum(range(1, 16))


@pytest.mark.parametrize(
    ("phases", "wanted"),
    [
        (["Running"], False), (["Finishing"], True), (["Finished"], True),
        (["Finishing", "Running"], False), (["Finishing", "Finishing"], False),
        (["Finishing", "Finished"], False), (["Finished", "Finished"], True),
    ],
)  # fmt: skip
def test_several_shards_need_units_until_the_last_one_is_at_its_end(phases: list[Any], wanted: bool) -> None:
    """They hear of each other's clocks and of the final cut from learners alone."""
    whole = combine([says(phase) for phase in phases])
    assert whole.status is not None
    assert finishing(whole.status) == wanted

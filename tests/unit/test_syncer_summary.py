"""The status of a run from those of its shards: by tables, and by properties for any reports of any shards."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport
from atoll_runtime.syncer.summary import Other, summary

NOW = 1_700_000_000.0
AWAY = "no session with shard 0 since 2023-11-14T22:13:20Z"


def status(phase: Any = "Running", **changes: Any) -> SyncerStatus:
    return SyncerStatus(
        **({"run_uid": "u", "phase": phase, "global_step": 10, "fragments": 4, "shards": 2} | changes)
    )


def here(phase: Any = "Running", **changes: Any) -> Other:
    return Other(None, status(phase, **changes))


def away(**changes: Any) -> Other:
    """A shard that had a session."""
    return Other(NOW, status(**changes))


def unit(incarnation: int = 2, **changes: Any) -> UnitReport:
    values = {"hosts": 2, "state": "Learning", "contributions": 3, "first_merge_time": NOW}
    return UnitReport(incarnation=incarnation, **(values | changes))


PHASES = [
    ("Finished", here("Finished"), "Finished"),
    ("Finished", here(), "Finishing"),
    ("Finished", away(phase="Finished"), "Finishing"),
    ("Finished", Other(NOW), "Finishing"),
    ("Running", here("Finishing"), "Running"),
    ("Finishing", here("Running"), "Finishing"),
]


def test_a_run_is_where_shard_0_is_and_finished_once_all_are() -> None:
    for own, other, phase in PHASES:
        assert summary(status(own), [other]).phase == phase, (own, other)


def test_figures_are_those_of_the_shard_behind_or_sums_and_what_units_report_is_of_shard_0() -> None:
    first = {"global_step": 20, "tokens": 900, "bytes_in": 5, "restarts": 1, "quorum": "3/3", "loss": 2.0}
    second = {"global_step": 12, "tokens": 500, "bytes_in": 6, "restarts": 2, "quorum": "1/3", "loss": 3.0}
    both = summary(status(**first), [here(**second, shard=1)])
    assert (both.global_step, both.tokens, both.quorum, both.loss) == (12, 500, "3/3", 2.0)
    assert (both.bytes_in, both.restarts, both.fragments, both.shard, both.shards) == (11, 3, 8, 0, 2)


def test_shards_without_a_session_are_named_with_the_time_and_keep_their_figures() -> None:
    own = status(global_step=20, message="waits for a", units={"a": unit()})
    found = summary(own, [away(global_step=12, message="old", units={"a": unit(state="Joining")})])
    assert (found.down, found.global_step) == (f"shard 1: {AWAY}", 12)
    assert found.message == f"shard 0: waits for a; shard 1: {AWAY}"
    assert found.units["a"].state == "Learning", "by the shards that are here"
    found = summary(own, [Other(NOW), Other(NOW), here(global_step=30)])
    assert (found.down, found.global_step) == (f"shards 1, 2: {AWAY}", 20)


def test_shards_without_tensors_have_no_part_in_the_figures() -> None:
    idle = here(global_step=0, fragments=0, units={"a": unit(state="Joining", contributions=0)})
    found = summary(status(global_step=20, units={"a": unit()}), [idle])
    assert (found.global_step, found.units["a"].state) == (20, "Learning")


def test_messages_of_shards_are_grouped() -> None:
    assert summary(status(message="waits"), [here(message="waits")]).message == "waits"
    others = [here(message=f"waits for {n % 7}") for n in range(1, 64)]
    many = summary(status(message="waits for 0"), others).message
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
]


def test_a_unit_is_as_the_shard_sees_it_that_has_least_of_it() -> None:
    for second, wanted in SEEN:
        found = summary(status(units={"a": unit()}), [here(units={"a": second} if second else {})]).units["a"]
        assert {key: getattr(found, key) for key in wanted} == wanted
    assert summary(status(units={"a": unit(hosts=0)}), [here()]).units["a"].state == "Gone"


def ledger_of(merged: int, in_flight: int, discarded: dict[str, int]) -> LedgerReport:
    trained = merged + in_flight + sum(discarded.values())
    return LedgerReport(trained=trained, merged=merged, in_flight=in_flight, discarded=discarded)


counts = st.integers(0, 10**12)
ledgers = st.builds(
    ledger_of, counts, counts, st.dictionaries(st.sampled_from(["Refused", "Missed", "Finished"]), counts)
)
names = st.sampled_from(["a", "b", "c"])
contributions = st.integers(0, 9)
units = st.builds(
    lambda incarnation, hosts, merged, staleness, first: unit(
        incarnation, hosts=hosts, contributions=merged, staleness=staleness, first_merge_time=first,
        state="Gone" if not hosts else "Learning" if merged else "Joining",
    ),
    st.integers(1, 3), st.integers(0, 4), contributions, contributions, st.none() | st.floats(NOW, NOW + 9),
)  # fmt: skip
statuses = st.builds(
    SyncerStatus,
    run_uid=st.just("u"),
    phase=st.sampled_from(["Running", "Finishing", "Finished"]),
    message=st.sampled_from(["", "waits", "stalls"]),
    global_step=st.integers(0, 100),
    tokens=counts,
    bytes_in=counts,
    fragments=st.integers(1, 24),
    units=st.dictionaries(names, units),
    ledger=st.dictionaries(names, ledgers),
)
others = st.builds(Other, st.none() | st.just(NOW), statuses) | st.just(Other(NOW))


@given(statuses, st.lists(others, min_size=1, max_size=6))
def test_whatever_shards_report_nothing_is_told_that_is_not_true_of_all(
    own: SyncerStatus, shards: list[Other]
) -> None:
    own = own.model_copy(update={"shards": len(shards) + 1})
    found = summary(own, shards)
    known = [own, *(shard.report for shard in shards if shard.report is not None)]
    serving = [own, *(shard.report for shard in shards if shard.report is not None and not shard.absence)]
    assert bool(found.down) == any(shard.absence for shard in shards)
    assert found.global_step == min(report.global_step for report in known)
    assert found.tokens == min(report.tokens for report in known)
    finished = len(serving) == own.shards and all(report.phase == "Finished" for report in serving)
    assert (found.phase == "Finished") == finished
    assert found.units.keys() == own.units.keys()
    for name, each in found.units.items():
        seen = [report.units.get(name) for report in serving]
        current = [one for one in seen if one is not None and one.incarnation == each.incarnation]
        if each.state == "Learning":
            assert len(current) == len(serving)
            assert all(one.state == "Learning" for one in current)
    both = LedgerReport.total(found.ledger.values())
    assert both.trained == both.merged + both.in_flight + sum(both.discarded.values())
    assert both.trained == sum(each.trained for report in known for each in report.ledger.values())
    assert found.fragments == sum(report.fragments for report in known)

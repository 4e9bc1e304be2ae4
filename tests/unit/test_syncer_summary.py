"""The status of a run from those of its shards."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lone_shard import LONE, joined

from atoll_operator.polling import BODY_LIMIT
from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport, dump
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.syncer.status import unit_report
from atoll_runtime.syncer.summary import Other, summary
from atoll_runtime.transport.stream import LARGEST_MESSAGE

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
    a, b = LedgerReport(trained=9, merged=4, in_flight=3, discarded={"Missed": 2}), LedgerReport(trained=1)
    first = {"global_step": 20, "tokens": 900, "bytes_in": 5, "restarts": 1, "quorum": "3/3", "loss": 2.0}
    second = {"global_step": 12, "tokens": 500, "bytes_in": 6, "restarts": 2, "quorum": "1/3", "loss": 3.0}
    both = summary(status(**first, ledger={"a": a}), [here(**second, shard=1, ledger={"a": a, "b": b})])
    assert (both.global_step, both.tokens, both.quorum, both.loss) == (12, 500, "3/3", 2.0)
    assert (both.bytes_in, both.restarts, both.fragments, both.shard, both.shards) == (11, 3, 8, 0, 2)
    twice = LedgerReport(trained=18, merged=8, in_flight=6, discarded={"Missed": 4})
    assert both.ledger == {"a": twice, "b": b}


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
    (
        unit(refused=2, repeated=1, refusals={"norm": 2}),
        {"refused": 3, "repeated": 1, "refusals": {"norm": 3}},
    ),
    (unit(suspect="it computes wrong"), {"suspect": "it computes wrong"}),
]


def test_a_unit_is_as_the_shard_sees_it_that_has_least_of_it() -> None:
    for second, wanted in SEEN:
        own = unit(refused=1, refusals={"norm": 1})
        found = summary(status(units={"a": own}), [here(units={"a": second} if second else {})]).units["a"]
        assert {key: getattr(found, key) for key in wanted} == wanted
    assert summary(status(units={"a": unit(hosts=0)}), [here()]).units["a"].state == "Gone"


def test_the_report_of_the_largest_run_is_short_enough_for_shard_0_and_the_operator() -> None:
    reports, names = [], [f"a-pool-of-slow-links-{n}" for n in range(4096)]
    for shard in (0, 1):
        rules = replace(LONE, fragments=96, interval=96, shards=2, shard=shard)
        machine = begin(rules, (10,) * 96, [5] * 96)
        for name in names:
            machine.handle(joined(name, 1, 0, 1), 0.0)
            machine.units[name].account.advance(10**9)
        units = {name: unit_report(machine, unit, None) for name, unit in machine.units.items()}
        assert all(len(each.waits) > 1 for each in units.values()), (
            "each has missed a merge of every fragment"
        )
        ledger = {
            name: LedgerReport.model_validate(each.account, from_attributes=True)
            for name, each in machine.units.items()
        }
        reports.append(status(shard=shard, units=units, ledger=ledger))
        assert len(dump(reports[shard])) < LARGEST_MESSAGE
    assert len(dump(summary(reports[0], [Other(None, reports[1])]))) < BODY_LIMIT

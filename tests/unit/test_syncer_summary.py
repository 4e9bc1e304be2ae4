"""The status of a run: shard 0's, with a few figures of the other shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
from lone_shard import LONE, joined

from atoll_operator.polling import BODY_LIMIT
from atoll_runtime.contract import LedgerReport, SyncerStatus, UnitReport, dump
from atoll_runtime.protocol.events import Left
from atoll_runtime.protocol.identifiers import NO_CUT
from atoll_runtime.protocol.messages import Standing
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.syncer.following import Following
from atoll_runtime.syncer.latest import Latest
from atoll_runtime.syncer.status import figures, unit_report
from atoll_runtime.syncer.summary import Other, summary
from atoll_runtime.transport.messages import LONGEST_TEXT, MOST_SUSPECTS, Figures
from atoll_runtime.transport.wire import Up, decode, encode

NOW = 1_700_000_000.0
AWAY = "no session with shard 0 since 2023-11-14T22:13:20Z"


def status(**changes: Any) -> SyncerStatus:
    return SyncerStatus(**({"run_uid": "u", "phase": "Running", "global_step": 10, "shards": 2} | changes))


def here(**changes: Any) -> Other:
    return Other(None, msgspec.structs.replace(Figures("", 10, 0, 0, 0, 0, 0, {}), **changes))


def away(**changes: Any) -> Other:
    """A shard that had a session."""
    return replace(here(**changes), away_since=NOW)


def test_a_few_figures_are_those_of_the_shard_behind_or_sums_and_all_else_is_of_shard_0() -> None:
    ledger = {"a": LedgerReport(trained=9, merged=4, in_flight=3, discarded={"Missed": 2})}
    units = {"a": UnitReport(incarnation=2, hosts=2, state="Learning", contributions=3, first_merge_time=NOW)}
    first = {"global_step": 20, "tokens": 900, "rounds": 4, "bytes_in": 5, "bytes_out": 1, "restarts": 1}
    second = {"global_step": 12, "tokens": 500, "rounds": 3, "bytes_in": 6, "bytes_out": 8, "restarts": 2}
    both = {"global_step": 12, "tokens": 500, "rounds": 7, "bytes_in": 11, "bytes_out": 9, "restarts": 3}
    own = status(phase="Finished", quorum="3/3", loss=2.0, fragments=4, ledger=ledger, units=units, **first)
    assert summary(own, [here(**second)]) == own.model_copy(update=both)


def test_shards_without_a_session_are_named_with_the_time_and_keep_their_figures() -> None:
    own = status(global_step=20, message="waits for a")
    found = summary(own, [away(global_step=12, message="old")])
    assert (found.down, found.global_step) == (f"shard 1: {AWAY}", 12)
    assert found.message == f"shard 0: waits for a; shard 1: {AWAY}"
    found = summary(own, [Other(NOW), Other(NOW), here(global_step=30)])
    assert (found.down, found.global_step) == (f"shards 1, 2: {AWAY}", 20)


def test_messages_of_shards_are_grouped() -> None:
    assert summary(status(message="waits"), [here(message="waits")]).message == "waits"
    others = [here(message=f"waits for {n % 7}") for n in range(1, 64)]
    many = summary(status(message="waits for 0"), others).message
    assert many.startswith("shards 0, 7, 14") and many.endswith("; and 3 more")


SUSPECTS = [
    ("", {"a": (2, "norm")}, "norm"),
    ("audit", {"a": (2, "norm")}, "audit"),
    ("", {"a": (1, "norm")}, ""),
    ("", {"b": (2, "norm")}, ""),
]


def test_a_unit_is_suspect_if_any_shard_says_so_of_its_present_incarnation() -> None:
    for own, others, found in SUSPECTS:
        units = {"a": UnitReport(incarnation=2, hosts=2, state="Learning", suspect=own)}
        told = summary(status(units=units), [here(), here(suspects=others)])
        assert {name: unit.suspect for name, unit in told.units.items()} == {"a": found}


def test_figures_are_few_and_short_however_many_units_a_shard_waits_for_and_does_not_trust() -> None:
    machine = begin(replace(LONE, shard=1, shards=2, quorum=200), (10,), [5])
    names = [f"a-pool-of-slow-links-{n}" for n in range(200)]
    for name in names:
        machine.handle(joined(name), 0.0)
        machine.units[name].suspect = "norm " * 1000
    for name in names[:100]:
        machine.handle(Left(name, 1, 0), 0.0)
    driver = SimpleNamespace(now=lambda: 0.0, restarts=1)
    service: Any = SimpleNamespace(
        machine=machine, driver=driver, state=SimpleNamespace(versions=(5,)), bytes_in=2, bytes_out=3
    )
    told = figures(service)
    assert decode(encode(told)) == told
    assert len(told.message) == LONGEST_TEXT
    assert list(told.suspects) == names[100 : 100 + MOST_SUSPECTS]


async def test_what_a_shard_has_merged_is_told_before_shard_0_can_end_the_run() -> None:
    """No status that the operator reads later would correct it."""
    running, done = Standing(9, False, NO_CUT), Standing(10, True, NO_CUT)
    news, sent = Latest[Any](running), asyncio.Queue[Up]()

    def told() -> Figures:
        return Figures("", news.value.step, 0, 0, 0, 0, 0, {})

    async def session(_: object, outgoing: AsyncIterator[Up]) -> AsyncIterator[None]:
        async for message in outgoing:
            sent.put_nowait(message)
            if message is running:
                news.set(done)
        yield None

    machine = SimpleNamespace(rules=replace(LONE, shard=1, shards=2), standing=running)
    driver: Any = SimpleNamespace(news=news, now=lambda: 0.0, run=SimpleNamespace(uid="u"), machine=machine)
    network: Any = SimpleNamespace(session=session)
    serving = asyncio.create_task(Following(driver, network, told).serve())
    first = told()
    assert [await sent.get() for _ in range(4)] == [first, running, told(), done]
    serving.cancel()


def test_the_report_of_the_largest_run_is_short_enough_for_the_operator() -> None:
    machine = begin(replace(LONE, fragments=96, interval=96), (10,) * 96, [5] * 96)
    for name in (f"a-pool-of-slow-links-{n}" for n in range(4096)):
        machine.handle(joined(name, 1, 0, 2), 0.0)
        machine.units[name].account.advance(10**9)
    units = {name: unit_report(machine, unit, None) for name, unit in machine.units.items()}
    assert all(len(each.waits) > 1 for each in units.values()), "each waits for its other host"
    ledger = {
        name: LedgerReport.model_validate(each.account, from_attributes=True)
        for name, each in machine.units.items()
    }
    assert len(dump(status(units=units, ledger=ledger))) < BODY_LIMIT

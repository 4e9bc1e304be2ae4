"""Polling of a pod's status over real TLS: what is read, when a syncer counts as unavailable, who is asked to save."""

from __future__ import annotations

import asyncio
import datetime
import functools
import itertools
import logging
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from answering import Handler, answering, pod_context
from pydantic import ValidationError

from atoll_operator.certificates.authority import Authority, client_context
from atoll_operator.kube.cache import Key
from atoll_operator.metrics.process import Metrics
from atoll_operator.plan.pods.names import evaluator_host, shard_host
from atoll_operator.plan.run.syncer_state import CheckpointOrder, SyncerState
from atoll_operator.polling import BODY_LIMIT, LONG, LONG_AT_ONCE, EvaluatorPoller, SyncerPoller
from atoll_operator.settings import Settings
from atoll_runtime import contract

NOW = datetime.datetime.now(datetime.UTC)
HOSTS = [shard_host("r", "ns", 0), evaluator_host("r", "ns")]
RUN = Key("TrainingRun", "ns", "r")
Report = contract.SyncerStatus | contract.EvaluatorStatus
STARTING = contract.SyncerStatus(run_uid="u", phase="Starting")
WAITING = contract.EvaluatorStatus(run_uid="u", phase="Waiting")


@functools.cache
def authority(run: str) -> Authority:
    return Authority.new(run, NOW)


def contexts(of: str = "r", trusts: str = "r", hosts: Sequence[str] = HOSTS) -> list[ssl.SSLContext]:
    """Of a pod with a certificate of this run, which trusts another or the same, and of the operator for `r`."""
    ours, client = authority("r"), client_context()
    pair = authority(of).issue("r-syncer", "spiffe://atoll.dev/s", hosts, NOW)
    ours.equip(client, ours.issue("operator", "spiffe://atoll.dev/o", (), NOW))
    return [pod_context(authority(trusts).pair.certificate, pair.certificate, pair.key), client]


@asynccontextmanager
async def polled(
    handle: Handler,
    changed: Any = lambda *_: None,
    kind: Any = SyncerPoller,
    shards: int = 1,
    path: str = "{shard}",
    **tls: Any,
) -> AsyncIterator[Any]:
    """A poller of the pod that answers so; shard `n` is at `/n`."""
    pod, operator = contexts(**tls)
    async with answering(handle, pod) as address:
        urls = {"syncer_url": f"{address}/{path}", "evaluator_url": address}
        poller = kind(Settings(runtime_image="i", poll_seconds=0.05, **urls), Metrics(), changed)
        poller.ensure(RUN, "u", shards, operator)
        if kind is SyncerPoller:
            poller.keep(RUN, of_units(1000).units)
        try:
            yield poller
        finally:
            await poller.close()


async def heard(handle: Handler, kind: Any = SyncerPoller, **tls: Any) -> Any:
    """The state after the first change."""
    changed = asyncio.Event()
    async with polled(handle, lambda *_: changed.set(), kind, **tls) as poller:
        await asyncio.wait_for(changed.wait(), 30)
        return poller.state(RUN, "u")


def answer(report: Report, status: int = 200, padding: str = "") -> web.Response:
    return web.Response(status=status, text=contract.dump(report) + padding, content_type="application/json")


def of_units(count: int) -> contract.SyncerStatus:
    figures = {"step": 10**6, "tokens": 10**12, "loss": 2.345678901}
    report = contract.UnitReport(incarnation=1, hosts=4, state="Learning", **figures)
    ledger = contract.LedgerReport(trained=10**14, merged=10**14 - 7, discarded={"Missed": 4, "Replaced": 3})
    names = [f"r-pool-{index}" for index in range(count)]
    units, ledgers = dict.fromkeys(names, report), dict.fromkeys(names, ledger)
    return contract.SyncerStatus(run_uid="u", phase="Running", units=units, ledger=ledgers)


@pytest.mark.parametrize(
    ("report", "padding", "reason"),
    [
        pytest.param(of_units(1000), "", "", id="many-packets"),
        pytest.param(STARTING, " " * BODY_LIMIT, "SyncerStatusTooLong", id="too-long"),
        pytest.param(WAITING, " " * BODY_LIMIT, "EvaluatorStatusTooLong", id="evaluator"),
        pytest.param(STARTING, "}", "SyncerStatusInvalid", id="no-json"),
    ],
)
async def test_a_report_is_read_whole_up_to_a_limit(report: Report, padding: str, reason: str) -> None:
    kind = SyncerPoller if isinstance(report, contract.SyncerStatus) else EvaluatorPoller

    async def handle(_: web.Request) -> web.Response:
        return answer(report, padding=padding)

    state = await heard(handle, kind)
    assert (state.reason, state.status) == (reason, None if reason else report)


async def test_reports_are_kept_of_the_runs_units_and_of_others_the_incarnation_and_the_sum_of_their_ledgers() -> (
    None
):
    report, wait = of_units(3000), contract.WaitReport(fragment=1, tokens=2, since=3, what="its link")
    long = contract.UnitReport(incarnation=5, hosts=1, state="Learning").model_copy(
        update={"waits": [wait] * 100}
    )
    state = await heard(
        Answers(
            [report.model_copy(update={"units": report.units | {"r-pool-0": long, "r-pool-2000": long}})]
        ).handle
    )
    own, units, ledger = of_units(1000), state.status.units, state.status.ledger
    assert units == own.units | {"r-pool-0": long.model_copy(update={"waits": [wait] * 64})}
    assert (state.incarnation_of("r-pool-0"), state.incarnation_of("r-pool-2000")) == (5, 5)
    assert ledger.keys() == own.ledger.keys() | {""} and ledger[""].merged == 2000 * (10**14 - 7)
    assert contract.LedgerReport.total(ledger.values()) == contract.LedgerReport.total(report.ledger.values())


async def test_what_is_kept_of_a_long_report_does_not_grow_with_its_texts() -> None:
    """A run names the image of its syncer, and the operator of all runs keeps the report."""
    text = "a" * 10**6
    unit = contract.UnitReport(incarnation=1, hosts=1, state="Gone").model_dump(by_alias=True)
    units = {"r-pool-0": unit | dict.fromkeys(("suspect", "slow", "seedMessage"), text)}
    content = {
        "phase": "Running",
        "message": text,
        "down": text,
        "units": units,
        "checkpoint": {"error": text},
    }

    async def handle(uid: str, _: web.Request) -> web.Response:
        return web.json_response({"runUid": uid, **content})

    for uid, reason in (("u", ""), (text, FOREIGN)):
        state = await heard(functools.partial(handle, uid))
        assert state.reason == reason and len(f"{state}") < 20_000


async def test_a_compressed_report_is_not_read() -> None:
    async def handle(_: web.Request) -> web.Response:
        (response := answer(of_units(1))).enable_compression(web.ContentCoding.gzip)
        return response

    assert (await heard(handle)).reason == "SyncerStatusInvalid"


async def test_few_long_reports_are_received_at_a_time_and_short_ones_do_not_wait_for_them() -> None:
    """The bodies of 40 runs, 8 MiB each, would end the operator."""
    slow = [Key("TrainingRun", "ns", f"slow{number}") for number in range(LONG_AT_ONCE)]
    quick, goes_on, known = Key("TrainingRun", "ns", "quick"), asyncio.Event(), set[str]()
    short = asyncio.Semaphore(0)

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path == "/r":
            short.release()
            return answer(of_units(1))
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b" " * LONG)
        if request.path != "/quick":
            await goes_on.wait()
        await response.write(contract.dump(of_units(1)).encode())
        return response

    def changed(run: Key, *_: SyncerState) -> None:
        known.add(run.name)
        if len(known) == len(slow) + 2:
            over.set()

    over, hosts = asyncio.Event(), [shard_host(run.name, "ns", 0) for run in (RUN, quick, *slow)]
    async with polled(handle, changed, path="{run}", hosts=hosts) as poller:
        for runs in (slow, [quick]):
            for run in runs:
                poller.ensure(run, "u", 1, contexts(hosts=hosts)[1])
            for _ in range(8):
                await asyncio.wait_for(short.acquire(), 30)
        assert known == {"r"}
        goes_on.set()
        await asyncio.wait_for(over.wait(), 30)
        assert all(poller.state(run, "u").answers for run in (quick, *slow))


UNIT = {"incarnation": 1, "hosts": 0, "state": "Gone"}
MANY = 10_000


def of_many(value: Any) -> dict[str, Any]:
    return dict.fromkeys(map(str, range(MANY)), value)


WRONG_EVERYWHERE: dict[str, dict[str, Any]] = {
    "units": {"units": of_many(0)},
    "refusals": {"units": {"a": UNIT | {"refusals": of_many("x")}}},
    "waits": {"units": {"a": UNIT | {"waits": [{}] * MANY}}},
    "discarded": {"ledger": {"a": {"discarded": of_many("x")}}},
    "reasons": {"units": {"a": UNIT | {"refusals": of_many(1)}}},
    "fates": {"ledger": {"a": {"discarded": of_many(1)}}},
    "a long name": {"units": {"a" * 10**6: UNIT}},
    "a long reason": {"ledger": {"a": {"discarded": {"b" * 10**6: 1}}}},
    "too many units": {"units": of_many(UNIT)},
    "too many ledgers": {"ledger": of_many({})},
}


@pytest.mark.parametrize("content", WRONG_EVERYWHERE.values(), ids=WRONG_EVERYWHERE)
async def test_a_report_that_is_wrong_everywhere_costs_little_memory(content: dict[str, Any]) -> None:
    """A run names the image of its syncer. What that reports must not end the operator of other runs. An error for
    each item took 1.6 KB, and 6 KB for the four fields of a wait."""

    async def handle(_: web.Request) -> web.Response:
        return web.json_response({"runUid": "u", "phase": "Running", **content})

    state = await heard(handle)
    assert (state.reason, state.status) == ("SyncerStatusInvalid", None)
    assert len(state.message) < 2000
    with pytest.raises(ValidationError) as found:
        contract.SyncerStatus.model_validate({"runUid": "u", "phase": "Running", **content})
    assert found.value.error_count() <= 4


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_pod_cannot_redirect_the_operator(method: str) -> None:
    """A run names the image of its syncer, and the operator reaches addresses that the pods of runs do not."""
    paths, over = list[str](), asyncio.Event()

    async def handle(request: web.Request) -> web.Response:
        paths.append(request.path)
        if len(paths) >= 4:
            over.set()
        if request.method == method:
            raise web.HTTPTemporaryRedirect("/elsewhere")
        return answer(of_units(1))

    async with polled(handle) as poller:
        poller.order(RUN, CheckpointOrder(1))
        await asyncio.wait_for(over.wait(), 30)
    assert set(paths) == {"/0"}


WRONG = "SyncerCertificateInvalid"
PODS = [
    ({"of": "other"}, WRONG),
    ({"hosts": ["elsewhere"]}, WRONG),
    ({"trusts": "other"}, "SyncerUnavailable"),
]


@pytest.mark.parametrize(("tls", "reason"), PODS, ids=["of-another-run", "another-pod", "does-not-know-us"])
async def test_members_of_one_run_trust_each_other_and_no_other_run(tls: dict[str, Any], reason: str) -> None:
    state = await heard(Answers([200]).handle, **tls)
    assert (state.reason, state.status) == (reason, None)


@dataclass
class Answers:
    """A pod's answers in turn: a report, or a status code with the first report. The last one stays."""

    script: list[Any]
    report: Report = field(default_factory=lambda: of_units(1))
    asked: int = 0
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def handle(self, _: web.Request) -> web.Response:
        if self.asked >= len(self.script):
            self.over.set()
        said = self.script[min(self.asked, len(self.script) - 1)]
        self.asked += 1
        return answer(self.report, said) if isinstance(said, int) else answer(said)


OTHER_RUN = contract.SyncerStatus(run_uid="other", phase="Running")
OTHER_SHARD = contract.SyncerStatus(run_uid="u", phase="Running", shard=1)
OTHER_COUNT = contract.SyncerStatus(run_uid="u", phase="Running", shards=2)
AWAY, FOREIGN, MISPLACED = "SyncerUnavailable", "SyncerOfAnotherRun", "SyncerShardMismatch"


@pytest.mark.parametrize(
    ("script", "states", "warnings"),
    [
        pytest.param([200, 503, 200, 503, 200], [""], [], id="each-second-poll-fails"),
        pytest.param([200, 503, 503, 200], ["", AWAY, ""], [AWAY], id="two-in-a-row-fail"),
        pytest.param([503, 503, 200], [AWAY, ""], [], id="it-has-yet-to-come"),
        pytest.param([OTHER_RUN, 200], [FOREIGN, ""], [FOREIGN], id="another-run-answers-first"),
        pytest.param([200, OTHER_SHARD, OTHER_COUNT, 200], ["", MISPLACED, MISPLACED, ""], [MISPLACED], id="shard"),
    ],
)  # fmt: skip
async def test_a_syncer_is_unavailable_after_two_failed_polls_in_a_row_and_its_loss_is_a_warning(
    script: list[Any], states: list[str], warnings: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    answers, seen = Answers(script), []

    def changed(run: Key, _: SyncerState, state: SyncerState) -> None:
        assert state.answers is (not state.reason)
        seen.append(state.reason)

    async with polled(answers.handle, changed):
        await asyncio.wait_for(answers.over.wait(), 30)
    assert seen == states
    told = [each for each in caplog.records if (each.name, each.levelno) == ("atoll", logging.WARNING)]
    assert [record.fields["reason"] for record in told] == warnings


async def test_silent_syncer_of_many_units_is_polled_again_soon() -> None:
    """While it answers it is polled every 3 s; that it is unavailable must not be noticed so slowly."""
    unavailable = asyncio.Event()

    def changed(run: Key, _: SyncerState, state: SyncerState) -> None:
        if state.reason:
            unavailable.set()

    async with polled(Answers([of_units(300), 503]).handle, changed):
        await asyncio.wait_for(unavailable.wait(), 5)


async def test_a_report_that_takes_long_to_read_is_asked_for_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        time, "thread_time", functools.partial(next, itertools.count(0.0, 0.02))
    )  # of each reading
    answers, began = Answers([200] * 2), time.monotonic()
    async with polled(answers.handle):
        await asyncio.wait_for(answers.over.wait(), 30)
    assert time.monotonic() - began > 1.0, "a reading of 20 ms is 2 % of a second"


async def test_stopped_poll_keeps_its_last_report_and_a_forgotten_one_does_not() -> None:
    changed = asyncio.Event()
    async with polled(Answers([200]).handle, lambda *_: changed.set()) as poller:
        await asyncio.wait_for(changed.wait(), 30)
        poller.stop(RUN)
        state = poller.state(RUN, "u")
        assert (state.answers, len(state.status.units)) == (False, 1)
        assert poller.state(RUN, "another").status is None
        poller.forget(RUN)
        assert poller.state(RUN, "u").status is None


class Shard:
    """Shard 0 at step 245, which is restarted or gives each cut up but the last that it is asked for."""

    def __init__(self, failures: int, shards: int = 1) -> None:
        self.failures, self.shards = failures, shards
        self.orders: list[int] = []
        self.paths: set[str] = set()
        self.polls = 0
        """Since its checkpoint holds all."""
        self.over = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.paths.add(request.path)
        if request.method == "POST":
            self.orders.append(contract.Order.model_validate_json(await request.read()).cut)
            return web.Response(status=202)
        saved = len(self.orders) > self.failures
        self.polls += saved
        if self.polls >= 5:
            self.over.set()
        newest = self.orders[-1] if saved else 200
        checkpoint = contract.CheckpointReport(newest_step=newest, uri="gs://b", current=saved)
        report = contract.SyncerStatus(run_uid="u", phase="Running", global_step=245, checkpoint=checkpoint)
        return answer(report.model_copy(update={"shards": self.shards}))


@pytest.mark.parametrize(("failures", "shards"), [(2, 1), (0, 2)])
async def test_shard_0_alone_is_asked_to_save_until_a_cut_holds_all(failures: int, shards: int) -> None:
    shard = Shard(failures, shards)
    async with polled(shard.handle, shards=shards) as poller:
        poller.order(RUN, CheckpointOrder(245, last=True))
        await asyncio.wait_for(shard.over.wait(), 30)
        assert shard.orders == [245] * (failures + 1)
        assert poller.state(RUN, "u").order == CheckpointOrder(245, last=True)
        assert poller.state(RUN, "u").serving_since is not None and shard.paths == {"/0"}


async def test_a_checkpoint_while_training_is_asked_for_until_nobody_wants_it_any_more() -> None:
    shard = Shard(failures=1)

    def changed(run: Key, _: SyncerState, state: SyncerState) -> None:
        if state.status is not None and state.status.checkpoint.current:
            poller.order(run, None)

    async with polled(shard.handle, changed) as poller:
        poller.order(RUN, CheckpointOrder(240))
        await asyncio.wait_for(shard.over.wait(), 30)
    assert shard.orders == [240] * 2

"""The service in this process: recovery, what it refuses, pushes that break."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import ClientSession
from lone_shard import joined, reported
from protocol_parties import ANSWER_SECONDS, until

from atoll_runtime.checkpoint import Cut, GlobalStore, Skipped, StoreError, arrays
from atoll_runtime.contract import ENV_RUN_FILE, CheckpointSpec, OuterSpec, RunContract, TargetSpec, dump
from atoll_runtime.model import describe, initial
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.events import FinalCut, Persisted, Said, Tick
from atoll_runtime.protocol.fragments import MOST_PADDING, Layout, build_layout, part_bounds
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Hello, Part, Report
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.syncer import __main__ as main
from atoll_runtime.syncer.__main__ import contract, recovered
from atoll_runtime.syncer.driver import Driver
from atoll_runtime.syncer.records import JournalError
from atoll_runtime.syncer.recovery import Start, recover
from atoll_runtime.syncer.service import Service
from atoll_runtime.syncer.status import Status, StatusServer
from atoll_runtime.syncer.tape import Tape
from atoll_runtime.transport.chunks import Assembly
from atoll_runtime.transport.chunks import filled as with_zeros
from atoll_runtime.transport.messages import (
    PROTOCOL,
    DirectoryReply,
    DirectoryRequest,
    FetchRequest,
    PushReply,
    Refused,
    Stop,
    Welcome,
)
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, Receive

pytestmark = pytest.mark.timeout(300)


PEER = Peer((), "here")


class Shelf(GlobalStore):
    """A store in a folder, of which the test says what cannot be read besides."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"file://{folder}")
        self.skipped: list[Skipped] = []

    def newest(self, **what: Any) -> tuple[Cut | None, list[Skipped]]:
        cut, skipped = super().newest(**what)
        return cut, skipped + self.skipped


@pytest.fixture(name="begin")
def begin_fixture(tmp_path: Path) -> Callable[[RunContract, Shelf], Start]:
    def begin(run: RunContract, store: Shelf) -> Start:
        directory = tmp_path / "journal"
        return recover(run, Rules.of(run), whole(run), directory, store, lambda: initial(run.model))

    return begin


@pytest.fixture(name="service")
async def service_fixture(make_run: Any, begin: Any, store: Shelf, tmp_path: Path) -> AsyncIterator[Service]:
    """On this event loop, with memory for any body."""
    run = make_run()
    tape = Tape(tmp_path / "tape", run.tape)
    made = Service(Driver(run, whole(run), begin(run, store), store, tape, 10**9))
    yield made
    await made.driver.close()


def whole(run: RunContract) -> Layout:
    return build_layout(describe(run.model), run.outer.fragments, len(run.shards))


@pytest.fixture(name="store")
def store_fixture(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


async def test_a_first_start_saves_step_0_and_a_later_one_goes_on_from_journal_or_checkpoint(
    make_run: Any, begin: Any, store: Shelf, tmp_path: Path
) -> None:
    run = make_run()
    start = begin(run, store)
    assert start.message == "started from the initial model"
    driver = Driver(run, whole(run), start, store, Tape(tmp_path / "tape", run.tape))
    driver.start()
    await until(lambda: store.steps() == [0])
    await driver.close()
    first = store.load(0)
    assert first.meta["model"] == {"dimensions": run.model.dimensions.model_dump(by_alias=True), "seed": 0}
    assert all(np.array_equal(first.theta[n], t) for n, t in initial(run.model).items())

    again = begin(run, store)
    again.journal.close()
    assert again.restarts == 1 and again.journal.lineage == start.journal.lineage

    shutil.rmtree(tmp_path / "journal")
    store.skipped = [Skipped(20, "half-written")]
    third = begin(run, store)
    third.journal.close()
    assert third.message.startswith("started from the checkpoint of global step 0; step 20 skipped")
    assert third.journal.lineage != start.journal.lineage and third.restarts == 0

    shutil.rmtree(tmp_path / "journal")
    with pytest.raises(Terminal, match=r"keep model and outer.fragments"):
        begin(make_run(outer=OuterSpec(fragments=3, interval=4)), store)


def test_a_run_is_never_begun_anew_over_checkpoints_that_were_whole(
    make_run: Any, begin: Any, store: Shelf
) -> None:
    store.skipped = [Skipped(20, "a wrong checksum")]
    with pytest.raises(StoreError, match="no complete checkpoint can be read"):
        begin(make_run(), store)
    store.skipped = [Skipped(20, "half-written", complete=False)]
    start = begin(make_run(), store)
    start.journal.close()
    assert start.message == "started from the initial model; step 20 skipped: half-written"


async def test_an_unusable_bucket_is_tried_again_and_the_status_says_so(
    make_run: Any, tmp_path: Path
) -> None:
    blocked = tmp_path / "bucket"
    blocked.write_text("a file where a folder should be")
    run = make_run(checkpoint=CheckpointSpec(uri=f"file://{blocked}/run"))
    layout = build_layout(describe(run.model), run.outer.fragments)
    status = Status(run)
    task = asyncio.create_task(recovered(run, layout, Rules.of(run), tmp_path / "journal", status))
    await until(lambda: "cannot be used yet" in status.message)
    assert status.report().phase == "Starting" and str(blocked) in status.report().message
    blocked.unlink()
    async with asyncio.timeout(60):
        _, start = await task
    start.journal.close()
    assert start.message == "started from the initial model"


async def test_a_bucket_that_fails_later_is_tried_again_and_the_status_says_so(
    service: Service, tmp_path: Path
) -> None:
    shelf, status = tmp_path / "shelf", Status(service.run, service=service)
    shelf.rename(tmp_path / "elsewhere")
    shelf.write_text("a file where the bucket was")
    service.driver.start()
    await until(lambda: str(shelf) in status.report().checkpoint.error)
    assert status.report().phase == "Running"
    shelf.unlink()
    (tmp_path / "elsewhere").rename(shelf)
    await until(lambda: not status.report().checkpoint.error)
    assert status.report().checkpoint.newest_step == 0 and Shelf(shelf).steps() == [0]


@pytest.mark.parametrize(
    ("fragments", "error", "phase"),
    [
        pytest.param(4, JournalError, "Starting", id="a-volume-that-fails-is-tried-again"),
        pytest.param(3, Terminal, "Failed", id="another-layout-is-not"),
    ],
)
async def test_only_what_no_restart_mends_is_told_as_the_runs_failure(
    make_run: Any,
    begin: Any,
    certificate: Any,
    store: Shelf,
    fragments: int,
    error: type[Exception],
    phase: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin(make_run(), store).journal.close()
    if error is JournalError:
        for path in (tmp_path / "journal").glob("state-*.wal"):
            path.unlink()
            path.mkdir()  # cannot be read
    run = make_run(outer=OuterSpec(fragments=fragments, interval=4))
    status = Status(run)
    monkeypatch.setattr(main, "Status", lambda *_: status)
    with pytest.raises(error):
        await main.serve(run, whole(run), Rules.of(run), Tls(certificate("syncer")), tmp_path)
    assert status.report().phase == phase
    assert str(tmp_path / "journal") in status.report().message


async def test_a_volume_on_which_no_folder_can_be_made_is_told_as_the_journals_failure(
    make_run: Any, certificate: Any, tmp_path: Path
) -> None:
    run = make_run()
    tls = Tls(certificate("syncer"))
    (tmp_path / "volume").touch()
    with pytest.raises(JournalError, match="volume/layout-1/journal: Not a directory"):
        await main.serve(run, whole(run), Rules.of(run), tls, tmp_path / "volume" / "layout-1")


async def test_an_event_that_the_machine_cannot_take_ends_the_shard_which_does_nothing_more(
    service: Service,
) -> None:
    """A bug must not leave a shard that lives and merges nothing: the next process goes on from the journal."""
    with pytest.raises(KeyError):
        service.driver.feed(Persisted(RoundId(9, 0, 0)))
    assert isinstance(service.driver.failed.exception(), KeyError)
    service.driver.feed(joined("a"))
    assert not service.machine.units


async def test_what_does_not_belong_to_the_run_is_refused_and_holds_no_memory(service: Service) -> None:
    run = service.driver.run
    fingerprint = service.state.layout.fingerprint
    good = Hello(PROTOCOL, run.uid, "a", 1, 0, 1, fingerprint, "bf16", 0, "")

    async def answer(peer: Peer, **changes: Any) -> Any:
        async def incoming() -> Any:
            yield Hello(**({name: getattr(good, name) for name in good.__struct_fields__} | changes))

        return await anext(service.session(peer, incoming()))

    for changes, words in [
        ({"run_uid": "other"}, "run uid: 'other'"),
        ({"fingerprint": "x"}, "layout: 'x'"),
        ({"codec": "float32"}, "codec: 'float32'"),
        ({"protocol": 99}, f"the unit's image speaks protocol 99, the syncer's {PROTOCOL}"),
        ({"host": 3}, "no such host"),
    ]:
        refused = await answer(PEER, **changes)
        assert isinstance(refused, Refused) and words in refused.reason
        assert refused.version == ("protocol" in changes)
    stranger = Peer(("spiffe://elsewhere",), "there")
    assert "names spiffe://elsewhere" in (await answer(stranger)).reason

    part = Part("a", 1, 0, 1, RoundId(1, 1, 0), 0, 1, 1, 0, 0, 0, 100, 100, 1)

    async def refusal(peer: Peer, part: Part) -> str:
        """Of a push whose body is never asked for."""
        reply = await service.push(peer, Header(part, "bf16", 200), bringing(memoryview(b"")))
        assert not reply.accepted and not service.bytes_in
        return reply.reason

    assert "not the current one" in await refusal(PEER, part)
    assert "certificate" in await refusal(stranger, part)
    size = service.state.layout.fragments[0].size
    filled, beyond = (
        part_bounds(size, 16_384)[-1][1],
        size + MOST_PADDING + 1,
    )  # as for 4,096 hosts of 4 chips
    found, body = service.fetch(PEER, FetchRequest("a", 1, 0, 0, 0, filled, "bf16"))
    assert found.size == 2 * filled and body.obj is service.state.fragments[0].wire.obj, "nothing was copied"
    assert bytes(with_zeros(body, found.size)) == bytes(body) + bytes(2 * (filled - size))
    assert "filled up by" in service.fetch(PEER, FetchRequest("a", 1, 0, 0, 0, beyond, "bf16"))


async def test_a_host_that_connects_hears_of_the_end_only_once_the_journal_has_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, driver = service.driver.run, service.driver
    driver.start()
    written, fingerprint = driver.durable, service.state.layout.fingerprint
    hello = Hello(PROTOCOL, run.uid, "a", 1, 0, 1, fingerprint, "bf16", 0, "")

    async def durable() -> None:
        """The final cut is complete while the host's incarnation is being written."""
        await written()
        monkeypatch.setattr(driver, "durable", written)
        driver.feed(FinalCut("file:///final"))

    async def incoming() -> Any:
        yield hello
        await asyncio.Event().wait()

    monkeypatch.setattr(driver, "durable", durable)
    session = service.session(PEER, incoming())
    assert isinstance(await anext(session), Welcome)
    async with asyncio.timeout(30):
        while not isinstance(await anext(session), Stop):
            pass
    await session.aclose()  # type: ignore[attr-defined]


def bringing(body: memoryview, here: asyncio.Event | None = None) -> Receive:
    """A body that arrives once `here` is set."""

    async def receive(assembly: Assembly) -> None:
        if here is not None:
            await here.wait()
        assembly.fill(body)

    return receive


async def test_a_push_that_is_begun_anew_while_it_is_read_counts_once_and_its_unit_is_waited_for(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, machine = service.driver, service.machine
    driver.start()
    driver.feed(joined("a"))
    for n in (1, 2):
        driver.feed(Said("a", 1, Report(n, n, 9 * n, 1.0, 0.01)))
    while not machine.rounds.in_flight:
        await asyncio.sleep(0.01)
        driver.feed(Tick())
    (round_id, *_) = machine.rounds.in_flight
    size = service.state.layout.fragments[round_id.fragment].size
    part = Part("a", 1, 0, 1, round_id, 0, 2, 18, 2, 2, 0, size, size, 18)
    header, body = Header(part, "bf16", 2 * size), memoryview(bytes(2 * size))
    reads, go_on, read = threading.Event(), threading.Event(), driver.arrays.read

    def slow(*args: Any) -> Any:
        reads.set()
        go_on.wait(60)
        return read(*args)

    monkeypatch.setattr(driver.arrays, "read", slow)
    push = asyncio.create_task(service.push(PEER, header, bringing(body)))
    await asyncio.to_thread(reads.wait, 60)
    assert driver.parts.used == 2 * size
    here = asyncio.Event()
    again = asyncio.create_task(service.push(PEER, Header(part, "bf16", 2 * size), bringing(body, here)))
    await asyncio.sleep(0)
    assert driver.parts.used == 2 * size and not driver.parts.reserved(header)
    go_on.set()
    assert await push == PushReply(False, "the push was begun anew")
    assert driver.parts.used == 2 * size
    assert "a" not in machine.rounds.in_flight[round_id].declined
    here.set()
    assert (await again).accepted


async def test_units_that_join_while_a_record_is_written_share_the_next_one_and_are_welcomed_after_it(
    service: Service,
) -> None:
    driver = service.driver
    real, written = driver.journal.remember, list[set[str]]()
    under_way, go_on = threading.Event(), threading.Event()

    def remember(facts: Mapping[str, Any]) -> None:
        under_way.set()
        go_on.wait(60)
        real(facts)
        written.append(set(facts["machine"]["units"]))

    driver.journal.remember = remember  # type: ignore[method-assign]

    async def join(unit: str) -> None:
        driver.feed(joined(unit))
        await driver.durable()
        assert unit in written[-1]

    first = asyncio.create_task(join("a"))
    await asyncio.to_thread(under_way.wait, 60)
    others = [asyncio.create_task(join(f"b-{number}")) for number in range(40)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, *others)
    assert [len(units) for units in written] == [1, 41]


async def test_a_suspect_unit_seeds_no_other(service: Service) -> None:
    for unit in ("a", "b"):
        service.driver.feed(msgspec.structs.replace(joined(unit), address=f"{unit}:1"))
        for step in range(3):
            service.driver.feed(reported(unit, step))
        service.machine.units[unit].contributions = 1

    def seeds() -> list[str]:
        answer = service.directory(PEER, DirectoryRequest("c", 1))
        assert isinstance(answer, DirectoryReply)
        return [each.unit for each in answer.peers]

    assert seeds() == ["a", "b"]
    service.machine.units["b"].suspect = "norm"
    assert seeds() == ["a"]


@pytest.mark.parametrize(
    ("late", "status", "text"), [(600.0, 200, "ok"), (0.0, 503, "gs://b/x, late for 0 s")]
)
async def test_a_call_that_never_comes_back_fails_the_liveness_probe(
    service: Service,
    certificate: Any,
    free_ports: Any,
    monkeypatch: pytest.MonkeyPatch,
    late: float,
    status: int,
    text: str,
) -> None:
    run, (port, health), released = service.driver.run, free_ports(2), threading.Event()
    server = StatusServer(
        Status(run, service=service), Tls(certificate("syncer")).server_context(), port, health
    )
    monkeypatch.setattr(arrays, "STUCK", late)
    with pytest.raises(TimeoutError):
        arrays._in_time(0.01, released.wait, "gs://b/x")
    await server.start()
    try:
        url = f"http://localhost:{health}/healthz"
        async with ClientSession() as session, session.get(url) as answer:
            assert (answer.status, text in await answer.text()) == (status, True)
    finally:
        released.set()
        await server.stop()


async def test_the_operator_alone_orders_cuts(service: Service, certificate: Any, free_ports: Any) -> None:
    run, (port, health) = service.driver.run, free_ports(2)
    tls = Tls(certificate("syncer"))
    server = StatusServer(Status(run, service=service), tls.server_context(), port, health)
    await server.start()
    service.driver.start()

    def order(member: str, body: bytes) -> int:
        """The answer's status."""
        context = ssl.create_default_context(cafile=str(certificate(member) / "ca.crt"))
        context.load_cert_chain(certificate(member) / "tls.crt", certificate(member) / "tls.key")
        url = f"https://localhost:{port}/status"
        try:
            with urllib.request.urlopen(url, data=body, timeout=ANSWER_SECONDS, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    for member, body, status in [("a", b'{"cut": 5}', 403), ("operator", b'{"stop": true}', 400)]:
        assert await asyncio.to_thread(order, member, body) == status
    assert service.machine.cuts.newest.number == 0
    assert await asyncio.to_thread(order, "operator", b'{"cut": 5}') == 202
    assert service.machine.cuts.newest.step == 5
    await server.stop()


@pytest.mark.parametrize(
    ("sections", "reason", "words"),
    [
        (None, "ContractInvalid", "No such file"),
        ({"target": TargetSpec()}, "ContractInvalid", "target: give globalSteps, tokens, or both"),
        (
            {"outer": OuterSpec(fragments=9, interval=4)},
            "ContractInvalid",
            "outer.fragments: 9 must be at most",
        ),
        ({"outer": OuterSpec(fragments=500, interval=500)}, "ModelInvalid", "500 does not fit this model"),
    ],
    ids=["missing", "no-target", "more-fragments-than-steps", "more-fragments-than-pieces"],
)
def test_a_contract_that_cannot_work_is_terminal_and_names_the_field(
    sections: dict[str, Any] | None,
    reason: str,
    words: str,
    make_run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run.json"
    monkeypatch.setenv(ENV_RUN_FILE, str(path))
    if sections is not None:
        path.write_text(dump(make_run(**sections)))
    with pytest.raises(Terminal, match=words) as caught:
        contract()
    assert caught.value.reason == reason

"""Bodies over real TLS sockets: what breaks goes on, what does not belong is refused, what is slow holds nobody up."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import socket
import ssl
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from protocol_parties import until

from atoll_bench.slowlink import SlowLink
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Part
from atoll_runtime.transport import stream, transfer_client
from atoll_runtime.transport.chunks import BLOCK, Assembly
from atoll_runtime.transport.messages import Attach, FetchHead, FetchRequest, PushReply
from atoll_runtime.transport.stream import CHUNK_HEAD, LARGEST_MESSAGE, Stream, framed
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transfer_client import RECONNECTS, TransferClient
from atoll_runtime.transport.transfer_server import TransferServer
from atoll_runtime.transport.transport import Peer, Receive, TransportError

SIZE = 256 * BLOCK + 17
BODY = memoryview(np.random.default_rng(0).bytes(SIZE))
PART = Part("a", 1, 0, 1, RoundId(1, 0, 0), 0, 1, 8, 0, 0, 0, 1, 1, 8)
HEADER = Header(PART, "bf16", SIZE)
REQUEST = FetchRequest("a", 1, 0, 1, 0, SIZE, "bf16")
SECONDS = 60.0


class Shelf:
    """An endpoint that keeps what comes."""

    def __init__(self) -> None:
        self.assemblies: dict[Any, Assembly] = {}
        self.peers: list[Peer] = []
        self.refusal = ""
        self.broken = 0
        self.version = 1

    async def push(self, peer: Peer, header: Header, receive: Receive) -> PushReply:
        self.peers.append(peer)
        if self.refusal:
            return PushReply(False, self.refusal)
        assembly = self.assemblies.setdefault(header.key, Assembly(header.size))
        try:
            await receive(assembly)
        except BaseException:
            self.broken += 1
            raise
        return PushReply(True)

    def fetch(self, peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview] | str:
        self.peers.append(peer)
        return self.refusal or (FetchHead(0, self.version, SIZE + BLOCK, "bf16"), BODY)


@pytest.fixture(name="folders")
def folders_fixture(authority: Any) -> tuple[Path, Path]:
    """Of the shard and of unit a."""
    ca = authority("r")
    return ca.issue("syncer", "spiffe://syncer"), ca.issue("a", "spiffe://a")


@asynccontextmanager
async def serving(
    shelf: Shelf, folders: tuple[Path, Path], seconds: float = SECONDS
) -> AsyncIterator[TransferServer]:
    server = TransferServer(shelf, Tls(folders[0]), 0, seconds)  # type: ignore[arg-type]
    yield server
    await server.stop()


@asynccontextmanager
async def linked(port: int, folder: Path, streams: int, chunk: int = BLOCK) -> AsyncIterator[TransferClient]:
    client = TransferClient("localhost", port, Tls(folder))
    client.streams, client.chunk = streams, chunk
    yield client
    await client.close()


@pytest.mark.parametrize(("streams", "chunk"), [(1, 1 << 20), (5, BLOCK), (3, 100 * BLOCK)])
async def test_a_body_crosses_over_any_number_of_connections_which_are_used_again(
    streams: int, chunk: int, folders: tuple[Path, Path]
) -> None:
    shelf, answered = Shelf(), list[int]()
    async with serving(shelf, folders) as server, linked(server.port, folders[1], streams, chunk) as client:
        for number in range(3):
            header = Header(dataclasses.replace(PART, host=number, hosts=3), "bf16", SIZE)
            assert await client.push(header, BODY, lambda: True) == PushReply(True)
            assert shelf.assemblies[header.key].body == BODY
            head, body = await client.fetch(REQUEST, lambda: answered.append(1))
            assert (head.size, bytes(body)) == (SIZE + BLOCK, bytes(BODY) + bytes(BLOCK))
        assert answered == [1, 1, 1]
        assert {peer.identities for peer in shelf.peers} == {("spiffe://a",)} and not shelf.broken
        assert len(server.streams) <= 2 * streams, "connections are used again"
        assert not client.broken


def pushed(client: TransferClient) -> Awaitable[Any]:
    return client.push(HEADER, BODY, lambda: True)


def fetched(client: TransferClient) -> Awaitable[Any]:
    return client.fetch(REQUEST, lambda: None)


@pytest.mark.parametrize("transfer", [pushed, fetched])
@pytest.mark.parametrize("streams", [1, 4])
async def test_a_transfer_that_breaks_half_way_goes_on_with_what_has_not_come(
    transfer: Callable[[TransferClient], Awaitable[Any]], streams: int, folders: tuple[Path, Path]
) -> None:
    shelf = Shelf()
    async with serving(shelf, folders) as server:
        with SlowLink("localhost", server.port) as link:
            async with linked(link.port, folders[1], streams) as client:
                link.cut_at = SIZE // 2
                await transfer(client)
                assert 1 <= client.broken <= streams
            assert link.cut_at > SIZE, "the cut was made"
        if transfer is pushed:  # a connection that is back may end its share before the others are back
            assert shelf.assemblies[HEADER.key].body == BODY and len(shelf.peers) <= 1 + streams
        else:
            assert len(shelf.peers) <= 2, "the version that was begun was sent to its end"


@pytest.mark.parametrize("transfer", [pushed, fetched])
async def test_a_transfer_goes_on_however_often_it_breaks_while_something_arrives(
    transfer: Callable[[TransferClient], Awaitable[Any]], folders: tuple[Path, Path]
) -> None:
    async with serving(Shelf(), folders) as server:
        with SlowLink("localhost", server.port) as link:
            async with linked(link.port, folders[1], 1) as client:
                running = asyncio.ensure_future(transfer(client))
                for _ in range(2 * RECONNECTS):
                    link.cut_at = link.sent + link.received + SIZE // 20
                    await until(lambda: link.cut_at > 10 * SIZE)
                await running
                assert client.broken >= 2 * RECONNECTS


async def test_a_body_that_crosses_slowly_but_steadily_is_not_taken_for_a_silent_one(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "STALL_SECONDS", 1.0)
    size, context = 4 << 20, Tls(folders[0]).identity().server

    def read() -> int:
        """All that comes, at 1.6 MB/s at most."""
        with listener.accept()[0] as sock, context.wrap_socket(sock, server_side=True) as secure:
            left = size
            while left and (data := secure.recv(16 << 10)):
                left -= len(data)
                time.sleep(0.01)
        return left

    def write() -> None:
        address, identity = ("localhost", listener.getsockname()[1]), Tls(folders[1]).identity()
        with contextlib.closing(Stream.connect(address, identity, "localhost", SECONDS)) as made:
            made.write(memoryview(bytes(size)))

    with stream.listening(0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        left, _ = await asyncio.gather(asyncio.to_thread(read), asyncio.to_thread(write))
    assert not left


async def test_what_ends_the_thread_of_a_body_ends_its_transfer(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(size: int) -> None:
        raise MemoryError(f"Unable to allocate {size} bytes")

    monkeypatch.setattr(transfer_client, "Assembly", full)
    async with serving(Shelf(), folders) as server, linked(server.port, folders[1], 3) as client:
        with pytest.raises(MemoryError, match="Unable to allocate"):
            await fetched(client)


async def test_a_push_goes_on_where_an_earlier_call_of_it_has_ended(folders: tuple[Path, Path]) -> None:
    shelf, asked = Shelf(), count()
    async with serving(shelf, folders) as server, linked(server.port, folders[1], 2) as client:
        with pytest.raises(TransportError, match="not wanted any more"):
            await client.push(HEADER, BODY, lambda: next(asked) < 100)
        await until(lambda: shelf.broken)
        come, asked = shelf.assemblies[HEADER.key].filled, count()
        assert 90 * BLOCK < come < 102 * BLOCK
        assert (await client.push(HEADER, BODY, lambda: next(asked) >= 0)).accepted
        assert next(asked) <= 257 - come // BLOCK + 1 and shelf.assemblies[HEADER.key].body == BODY


async def test_a_connection_whose_break_the_shard_has_not_noticed_gives_way_to_the_next(
    folders: tuple[Path, Path],
) -> None:
    shelf = Shelf()
    async with serving(shelf, folders) as server, linked(server.port, folders[1], 1) as client:
        with await asyncio.to_thread(dialled, server.port, folders[1]) as silent:
            silent.sendall(framed(Attach(HEADER, 1, 0, BLOCK)) + CHUNK_HEAD.pack(0, BLOCK) + b"half")
            await until(lambda: any(each._arriving for each in shelf.assemblies.values()))
            await client.push(HEADER, BODY, lambda: True)
        assert shelf.assemblies[HEADER.key].body == BODY and not client.broken


async def test_a_push_whose_caller_goes_is_broken_off(folders: tuple[Path, Path]) -> None:
    shelf, hold = Shelf(), threading.Event()
    async with serving(shelf, folders) as server, linked(server.port, folders[1], 2) as client:
        push = asyncio.create_task(client.push(HEADER, BODY, lambda: hold.wait(0.1) or True))
        await until(lambda: shelf.assemblies)
        push.cancel()
        with pytest.raises(asyncio.CancelledError):
            await push
        await until(lambda: shelf.broken)
        await client.close()  # a connection that was being made when the caller went is idle
        await until(lambda: not server.streams)


async def test_what_is_refused_is_refused_before_its_body_is_sent(folders: tuple[Path, Path]) -> None:
    shelf = Shelf()
    shelf.refusal = "the round is over"
    async with serving(shelf, folders) as server, linked(server.port, folders[1], 3) as client:
        with SlowLink("localhost", server.port) as link:
            async with linked(link.port, folders[1], 3) as client:
                assert await client.push(HEADER, BODY, lambda: True) == PushReply(False, "the round is over")
                with pytest.raises(TransportError, match="the round is over"):
                    await client.fetch(REQUEST, lambda: None)
                assert link.sent + link.received < BLOCK


async def test_a_certificate_of_another_run_is_refused_at_both_ends(
    folders: tuple[Path, Path], authority: Any
) -> None:
    shelf, foreign = Shelf(), authority("other").issue("a", "spiffe://a")
    async with serving(shelf, folders) as server, linked(server.port, foreign, 1) as client:
        with pytest.raises(TransportError, match="TLS refused"):
            await client.push(HEADER, BODY, lambda: True)
        assert not shelf.peers
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(folders[0] / "ca.crt")

        def without_certificate() -> bytes:
            with (
                socket.create_connection(("localhost", server.port), SECONDS) as sock,
                context.wrap_socket(sock, server_hostname="localhost") as secure,
            ):
                return secure.recv(1)

        with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
            await asyncio.to_thread(without_certificate)


async def test_a_connection_that_is_idle_for_long_is_closed_while_others_are_used(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer_client, "IDLE_SECONDS", 0.3)
    async with serving(Shelf(), folders) as server, linked(server.port, folders[1], 1) as client:
        requests = [msgspec.structs.replace(REQUEST, start=start) for start in range(4)]
        await asyncio.gather(*(client.fetch(each, lambda: None) for each in requests))
        assert len(server.streams) > 1
        async with asyncio.timeout(SECONDS):
            while len(server.streams) > 1:
                await fetched(client)


async def test_nobody_answers_and_the_transfer_fails_at_once(
    folders: tuple[Path, Path], free_ports: Any
) -> None:
    (port,) = free_ports(1)
    async with linked(port, folders[1], 2) as client, asyncio.timeout(SECONDS):
        with pytest.raises(TransportError, match="Connection refused"):
            await client.push(HEADER, BODY, lambda: True)


def dialled(port: int, folder: Path) -> ssl.SSLSocket:
    """A connection with the certificate in `folder`, without the product's client."""
    sock = socket.create_connection(("localhost", port), SECONDS)
    return Tls(folder).identity().client.wrap_socket(sock, server_hostname="localhost")


@pytest.mark.parametrize(
    "data",
    [struct.pack("!I", LARGEST_MESSAGE + 1), struct.pack("!I", 3) + b"abc", framed(HEADER)],
    ids=["too-large", "no-message", "no-attach"],
)
async def test_a_connection_that_says_anything_else_is_closed(
    data: bytes, folders: tuple[Path, Path]
) -> None:
    async with serving(Shelf(), folders) as server:

        def told() -> bytes:
            with dialled(server.port, folders[1]) as secure:
                secure.sendall(data)
                return secure.recv(1)

        assert await asyncio.to_thread(told) == b""


async def test_who_shakes_hands_too_slowly_is_cut_off(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_runtime.transport.listener.HANDSHAKE_SECONDS", 0.5)

    def cut_off(port: int) -> bool:
        with socket.create_connection(("localhost", port)) as plain:
            plain.settimeout(0.1)
            for byte in b"\x16\x03\x01\x01\x00" + bytes(600):  # a record that takes a minute
                try:
                    plain.sendall(bytes([byte]))
                    if not plain.recv(1):
                        return True
                except TimeoutError:
                    continue
                except OSError:  # reset, because a byte came after the last that the shard read
                    return True
        return False

    async with serving(Shelf(), folders) as server:
        assert await asyncio.to_thread(cut_off, server.port)
        await until(lambda: not server.streams)


async def test_who_waits_for_a_connection_that_is_closed_already_knows_that_it_was_left(
    folders: tuple[Path, Path],
) -> None:
    """The thread that waits may begin after the connection has ended."""
    async with serving(Shelf(), folders) as server:
        address, identity = ("localhost", server.port), Tls(folders[1]).identity()
        stream = await asyncio.to_thread(Stream.connect, address, identity, "localhost", SECONDS)
        stream.close()
        await asyncio.to_thread(stream.until_left)


async def test_connections_that_are_reset_at_once_hold_nobody_up(folders: tuple[Path, Path]) -> None:
    async with serving(Shelf(), folders) as server, asyncio.timeout(SECONDS / 4):
        for _ in range(300):
            plain = socket.create_connection(("localhost", server.port))
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            plain.close()
        (await asyncio.to_thread(dialled, server.port, folders[1])).close()


async def test_a_shard_without_a_further_thread_closes_idle_connections_and_serves_on(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "transfers" and len(server.streams) > 4:
            raise RuntimeError("can't start new thread")
        start(thread)

    async with serving(Shelf(), folders) as server:
        idle = [await asyncio.to_thread(dialled, server.port, folders[1]) for _ in range(4)]
        monkeypatch.setattr(threading.Thread, "start", limited)
        async with asyncio.timeout(SECONDS):
            while len(idle) == 4:
                with contextlib.suppress(OSError):  # refused, to make room for the next one
                    idle.append(await asyncio.to_thread(dialled, server.port, folders[1]))
        for secure in idle:
            secure.close()


async def test_hosts_that_do_not_read_what_they_fetch_hold_nobody_up(folders: tuple[Path, Path]) -> None:
    shelf = Shelf()
    async with serving(shelf, folders) as server, linked(server.port, folders[1], 2) as client:
        silent = [await asyncio.to_thread(dialled, server.port, folders[1]) for _ in range(24)]
        for number, secure in enumerate(silent):
            request = msgspec.structs.replace(REQUEST, start=number + 1)
            secure.sendall(framed(Attach(request, number, 0, BLOCK)))
        await until(lambda: len(server._fetches) == len(silent))
        async with asyncio.timeout(SECONDS):
            _, body = await client.fetch(REQUEST, lambda: None)
        assert body[:SIZE] == BODY and len(server._fetches) >= len(silent)
        for secure in silent:
            secure.close()


async def test_a_host_that_reads_slowly_keeps_one_version_of_a_part_and_no_longer_than_a_transfer_may_take(
    folders: tuple[Path, Path],
) -> None:
    shelf, served = Shelf(), list[weakref.ref[Any]]()

    def fetch(peer: Peer, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        version = np.zeros(SIZE, np.uint8)
        served.append(weakref.ref(version))
        return FetchHead(0, len(served), SIZE, "bf16"), version.data

    def kept() -> int:
        gc.collect()
        return sum(version() is not None for version in served)

    shelf.fetch = fetch  # type: ignore[method-assign]
    async with serving(shelf, folders, seconds=3.0) as server:
        slow = [await asyncio.to_thread(dialled, server.port, folders[1]) for _ in range(4)]
        for number, secure in enumerate(slow, 1):
            secure.sendall(framed(Attach(REQUEST, number, 0, BLOCK)))
            await until(lambda number=number: len(served) == number)
        await until(lambda: kept() <= 1)
        await until(lambda: kept() == 0)
        assert not server._fetches
        for secure in slow:
            secure.close()


async def test_a_server_that_stops_leaves_no_connection_thread_or_call(folders: tuple[Path, Path]) -> None:
    shelf, hold = Shelf(), threading.Event()
    async with serving(shelf, folders) as server, linked(server.port, folders[1], 2) as client:
        await client.fetch(REQUEST, lambda: None)
        push = asyncio.create_task(client.push(HEADER, BODY, lambda: hold.wait(0.1) or True))
        await until(lambda: shelf.assemblies)
        await server.stop()
        with pytest.raises(TransportError):
            await push
        assert not server.streams and shelf.broken == 1
        await until(lambda: not any(thread.name.startswith("transfers") for thread in threading.enumerate()))

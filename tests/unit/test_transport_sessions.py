"""Sessions over real sockets: what ends one, what is no message, and certificates that change on disk meanwhile."""

from __future__ import annotations

import asyncio
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from atoll_operator.certificates.authority import Authority, Pair
from atoll_runtime.contract import SyncerAddress
from atoll_runtime.protocol.messages import Audit, Hello
from atoll_runtime.transport.messages import Announce, Welcome
from atoll_runtime.transport.sessions import SessionServer, TlsNetwork
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, TransportError
from atoll_runtime.transport.wire import Up, WireError, decode, encode

DAY = datetime.timedelta(days=1)
HELLO = Hello(1, "uid", "a", 1, 0, 1, "f", "bf16", 0, "")


def now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Mount:
    """A Secret's volume like the kubelet's. The names go through one symbolic link, which is replaced atomically."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self._turn = 0
        for name in ("ca.crt", "tls.crt", "tls.key"):
            (folder / name).symlink_to(Path("..data") / name)

    def put(self, ca: bytes, pair: Pair) -> None:
        self._turn += 1
        generation = self.folder / f"..{self._turn}"
        generation.mkdir()
        for name, content in (("ca.crt", ca), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
            (generation / name).write_bytes(content)
        (self.folder / "..new").symlink_to(generation.name)
        os.replace(self.folder / "..new", self.folder / "..data")


class Echo:
    """An endpoint that records its peers and answers each audit, or only one in each session."""

    def __init__(self, once: bool = False) -> None:
        self.peers, self._once = list[str](), once

    async def session(self, peer: Peer, incoming: AsyncIterator[Up]) -> AsyncIterator[Any]:
        async for message in incoming:
            if isinstance(message, Hello):
                self.peers.append(peer.identities[0])
                yield Welcome("l", 0, (), (), 0, 0)
            else:
                yield Announce(0, len(self.peers), 0)
                if self._once:
                    return


class Session:
    """One session with messages from the test."""

    def __init__(self, network: TlsNetwork, audits: asyncio.Queue[Up] | None = None) -> None:
        self.audits = audits or asyncio.Queue[Up]()
        self.answers: Any = network.session(HELLO, self._outgoing())

    async def _outgoing(self) -> AsyncIterator[Up]:
        while True:
            yield await self.audits.get()

    async def opened(self) -> Session:
        """Returns once it is welcomed. Raises TransportError."""
        assert isinstance(await anext(self.answers), Welcome)
        return self


@pytest.fixture
def authority() -> Authority:
    return Authority.new("r", now())


@pytest.fixture
def mounts(tmp_path: Path, authority: Authority) -> tuple[Mount, Mount]:
    """The syncer's and a unit's mount, with certificates of the same authority."""
    both = Mount(tmp_path / "syncer"), Mount(tmp_path / "unit")
    for mount, name in zip(both, ("syncer", "unit"), strict=True):
        mount.put(
            authority.pair.certificate, authority.issue(name, f"spiffe://{name}/1", ["localhost"], now())
        )
    return both


@asynccontextmanager
async def serving(echo: Echo, mounts: tuple[Mount, Mount]) -> AsyncIterator[Callable[[], TlsNetwork]]:
    """A server of `echo`, and what makes a unit's networks to it."""
    server = SessionServer(echo, Tls(mounts[0].folder), 0)  # type: ignore[arg-type]
    await server.start()
    networks: list[TlsNetwork] = []

    def network() -> TlsNetwork:
        networks.append(TlsNetwork(SyncerAddress(host="localhost", port=server.port), Tls(mounts[1].folder)))
        return networks[-1]

    yield network
    for each in networks:
        await each.close()
    await server.stop()


async def test_a_session_that_the_shard_has_ended_takes_nothing_that_the_next_one_is_to_send(
    mounts: tuple[Mount, Mount],
) -> None:
    async with serving(Echo(once=True), mounts) as network_to:
        network, audits = network_to(), asyncio.Queue[Up]()
        for _ in range(3):
            audits.put_nowait(Audit(0, "v6e", 1.0))
            answers = Session(network, audits).answers
            assert [type(message) async for message in answers] == [Welcome, Announce]
        audits.put_nowait(Audit(1, "v6e", 1.0))
        await asyncio.sleep(0.01)
        assert audits.qsize() == 1


async def test_a_session_whose_messages_fail_ends_with_that_error(mounts: tuple[Mount, Mount]) -> None:
    """It must not go on receiving while nothing is sent any more."""

    async def outgoing() -> AsyncIterator[Up]:
        yield Audit(0, "v6e", 1.0)
        raise MemoryError("no more")

    async with serving(Echo(), mounts) as network_to, asyncio.timeout(30):
        with pytest.raises(MemoryError, match="no more"):
            async for _ in network_to().session(HELLO, outgoing()):
                pass


DEEP = b"\x82\xa4type\xa6Report\xa1y" + b"\x91" * 5000


@pytest.mark.parametrize("data", [b"", b"\x80", b"junk", encode(Announce(1, 2, 2))[:-1], DEEP])
def test_other_bytes_are_not_a_message(data: bytes) -> None:
    with pytest.raises(WireError, match="not a message of protocol"):
        decode(data)


class Step(NamedTuple):
    """One side gets a certificate. After that a new session shows the unit's identity, or is refused."""

    side: Literal["syncer", "unit"]
    trusts: str
    signer: str
    shown: str
    """End of the identity that the syncer sees; empty: the session is refused."""
    age: datetime.timedelta = 0 * DAY


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([Step("syncer", "a", "a", "1"), Step("unit", "a", "a", "step-1")], id="renewed"),
        pytest.param(
            [Step("unit", "a", "a", "", 91 * DAY), Step("unit", "a", "a", "step-1")], id="a-unit-expired"
        ),
        pytest.param(
            [Step("syncer", "a", "a", "", 91 * DAY), Step("syncer", "a", "a", "1")], id="a-syncer-expired"
        ),
        pytest.param(
            [
                Step("unit", "ab", "a", "step-0"),
                Step("syncer", "ab", "b", "step-0"),
                Step("syncer", "b", "b", ""),
                Step("unit", "ab", "b", "step-3"),
            ],
            id="an-authority-follows-another",
        ),
    ],
)
async def test_a_new_session_uses_what_is_there_and_a_standing_one_goes_on(
    steps: list[Step], mounts: tuple[Mount, Mount], authority: Authority
) -> None:
    authorities = {"a": authority, "b": Authority.new("r", now())}
    echo = Echo()
    async with serving(echo, mounts) as network_to:
        standing = await Session(network_to()).opened()
        for number, step in enumerate(steps):
            uri = f"spiffe://{step.side}/step-{number}"
            pair = authorities[step.signer].issue(step.side, uri, ["localhost"], now() - step.age)
            bundle = b"".join(authorities[name].pair.certificate for name in step.trusts)
            mounts[step.side == "unit"].put(bundle, pair)
            if step.shown:
                await (await Session(network_to()).opened()).answers.aclose()
                assert echo.peers[-1] == f"spiffe://unit/{step.shown}"
            else:
                with pytest.raises(TransportError):
                    await Session(network_to()).opened()
        standing.audits.put_nowait(Audit(0, "v6e", 1.0))
        assert isinstance(await anext(standing.answers), Announce)
        await standing.answers.aclose()


async def test_connections_that_only_wait_leave_room_for_others_and_end(
    mounts: tuple[Mount, Mount], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_runtime.transport.sessions.MOST_HANDSHAKES", 4)
    monkeypatch.setattr("atoll_runtime.transport.sessions.HANDSHAKE_SECONDS", 2.0)
    echo = Echo()
    async with serving(echo, mounts) as network_to, asyncio.timeout(60):
        network = network_to()
        silent = [await asyncio.open_connection("localhost", network._shard.port) for _ in range(20)]
        assert [await reader.read(1) for reader, _ in silent[:16]] == [b""] * 16, "the oldest end at once"
        await (await Session(network).opened()).answers.aclose()
        assert [await reader.read(1) for reader, _ in silent[16:]] == [b""] * 4
        for _, writer in silent:
            writer.close()


async def test_files_that_do_not_belong_together_leave_the_last_identity_in_place(
    mounts: tuple[Mount, Mount], authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    tls = Tls(mounts[0].folder)
    before = tls.identity()
    one, other = (authority.issue("syncer", "spiffe://x", ["localhost"], now()) for _ in range(2))
    mounts[0].put(authority.pair.certificate, Pair(one.certificate, other.key))
    assert tls.identity() is before
    assert "keeps the certificate that it has" in caplog.text
    mounts[0].put(authority.pair.certificate, one)
    assert tls.identity() is not before


async def test_a_server_shows_the_newest_certificate_to_clients_with_and_without_a_server_name(
    mounts: tuple[Mount, Mount], authority: Authority
) -> None:
    context = Tls(mounts[0].folder).server_context()
    server = await asyncio.start_server(lambda _, writer: writer.write(b"x"), "127.0.0.1", 0, ssl=context)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.load_verify_locations(cadata=authority.pair.certificate.decode())
    client.load_cert_chain(mounts[1].folder / "tls.crt", mounts[1].folder / "tls.key")

    tickets: list[ssl.SSLSession | None] = [None]

    def ask(name: str | None) -> bytes:
        with (
            socket.create_connection(server.sockets[0].getsockname(), 10) as plain,
            client.wrap_socket(plain, server_hostname=name, session=tickets[-1]) as secure,
        ):
            if not secure.recv(1):
                raise ConnectionError("closed without an answer")
            found = secure.getpeercert(binary_form=True)
            tickets.append(secure.session)
        assert found is not None
        return ssl.DER_cert_to_PEM_cert(found).encode()

    async def shown(name: str | None) -> bytes:
        return await asyncio.to_thread(ask, name)

    renewed = authority.issue("syncer", "spiffe://syncer/2", ["localhost"], now())
    async with server:
        assert await shown("localhost") == (mounts[0].folder / "tls.crt").read_bytes()
        mounts[0].put(authority.pair.certificate, renewed)
        assert await shown("localhost") == await shown(None) == renewed.certificate
        # The authority that the server trusts changes too. A client that resumes would not be checked again.
        mounts[0].put(Authority.new("another", now()).pair.certificate, renewed)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await shown("localhost")

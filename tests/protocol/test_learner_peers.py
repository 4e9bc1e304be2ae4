"""Seeding from peers that are slow, silent, busy, unreachable, or too late."""

import random
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from atoll_runtime.learner.peers import Peers
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress, SnapshotHead
from atoll_runtime.transport.peer import PeerClient, PeerServer
from atoll_runtime.transport.tls import Tls

pytestmark = pytest.mark.timeout(120)
LAYOUT = build_layout([TensorInfo(f"t{i}", (8,), False, False) for i in range(6)], 3, 2)
COUNT = len(LAYOUT.fragments)
NEWCOMER = SimpleNamespace(unit="new", incarnation=2)
VERSION = 5
PATIENCE = 3.0
"""Seconds: enough for a peer's threads on a loaded machine."""
PROMPT = 25.0
"""Seconds; waiting for a peer of these tests to its end takes 30."""


def part(number):
    size = LAYOUT.fragments[number].size
    values = np.full(size, number, np.float32)
    return SnapshotHead(number, VERSION, 7, 0, size), (values, values, values)


def whole(gone):
    yield from map(part, range(COUNT))


def silent(gone):
    gone.wait(30)
    yield from ()


class Peer:
    """A real server of a unit of one host: a script for each request, or a text with which it declines."""

    def __init__(self, name, scripts, tls):
        self.name, self.scripts, self.asked = name, scripts, 0
        self._server = PeerServer(self, tls, 0)
        self.address = f"localhost:{self._server.port}"

    def open(self, peer, request):
        script = self.scripts[min(self.asked, len(self.scripts) - 1)]
        self.asked += 1
        return script if isinstance(script, str) else Played(script)

    def close(self):
        self._server.close()


class Played:
    """A script as `Snapshots`."""

    def __init__(self, script):
        self._gone = threading.Event()
        self._items = script(self._gone)

    def __iter__(self):
        return self._items

    def close(self):
        self._gone.set()


class InOrder(random.Random):
    """Asks peers as they are listed."""

    def sample(self, population, k, **_):
        return list(population)[:k]


@pytest.fixture
def tls(authority):
    return Tls.read(authority("run").issue("unit", "atoll://unit"))


@pytest.fixture
def make_peer(tls):
    peers = []

    def make(name, *scripts):
        peers.append(Peer(name, scripts, tls))
        return peers[-1]

    yield make
    for peer in peers:
        peer.close()


@pytest.fixture
def pull(tls):
    """Pulls from these peers, in order of their names; returns what came, the last reason, and the seconds it took."""

    def run(*peers, **limits):
        def connect(name, address):
            return PeerClient(address, tls, "localhost")

        def directory():
            found = tuple(PeerAddress(peer.name, 1, (peer.address,)) for peer in peers)
            return [DirectoryReply("lineage", (VERSION,) * LAYOUT.width, found) for _ in range(LAYOUT.shards)]

        limits = {"first_wait": 0.01, "budget": 60.0} | limits
        begun = time.monotonic()
        pulled, why = Peers(directory, connect, InOrder(), **limits).pull(NEWCOMER, LAYOUT)
        return pulled, why, time.monotonic() - begun

    return run


def test_peer_whose_fragments_come_in_time_may_be_slow(make_peer, pull):
    def slow(gone):
        yield from map(part, range(COUNT - 1))
        gone.wait(PATIENCE + 1)
        yield part(COUNT - 1)

    pulled, why, seconds = pull(make_peer("a", slow), patience=PATIENCE)
    assert pulled is not None, why
    assert seconds > PATIENCE + 1
    assert pulled.versions == (VERSION,) * COUNT


@pytest.mark.parametrize(("sent", "budget"), [(0, 60.0), (1, 12.0)])
def test_next_peer_is_asked_when_one_sends_too_little_for_the_time_left(make_peer, pull, sent, budget):
    def late(gone):
        yield from map(part, range(sent))
        yield from silent(gone)

    lost = make_peer("a", late)
    pulled, why, seconds = pull(lost, make_peer("b", whole), patience=PATIENCE, budget=budget)
    assert pulled.unit == "b"
    assert why == f"a: {sent} of {COUNT} fragments came in 3 s, {budget - 3:.0f} s are left"
    assert seconds < PROMPT
    assert pull(lost, patience=PATIENCE, budget=budget)[0] is None
    assert lost.asked == 2, "once in each pull"


def test_peer_that_declines_is_asked_three_times_at_most(make_peer, pull):
    busy = make_peer("a", "a is serving 2 others")
    pulled, why, _ = pull(busy)
    assert pulled is None
    assert why.endswith("a is serving 2 others")
    assert busy.asked == 3


def test_all_peers_together_have_one_budget(make_peer, pull):
    peers = [make_peer(name, silent) for name in "ab"]
    pulled, why, seconds = pull(*peers, budget=3.0)
    assert pulled is None
    assert why.startswith("a: localhost:") and "the other end is silent" in why
    assert 2.9 <= seconds < PROMPT
    assert sum(peer.asked for peer in peers) == 1

"""Seeding from peers that are slow, silent, busy, unreachable, or too late."""

import random
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from atoll_runtime.learner.peers import LOST_PEERS, NAMED, Peers
from atoll_runtime.learner.serving import TapStream
from atoll_runtime.learner.snapshot import NOTHING, Capture, Snapshots
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress
from atoll_runtime.transport.peer import Pace, PeerClient, PeerServer, SnapshotHead
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
    yield Pace(0.01)
    yield from map(part, range(COUNT))


def paced(step_seconds):
    """A peer that says how long its steps are, and nothing more."""

    def script(gone):
        yield Pace(step_seconds)
        gone.wait(30)

    return script


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
        self._server.close(0.0)


class Played:
    """A script as a `Stream`."""

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
def deaf():
    """The address of a server that accepts connections and sends nothing."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen(64)
        yield f"localhost:{listener.getsockname()[1]}"


@pytest.fixture
def pull(tls):
    """Pulls from these peers, in order of their names; returns what came, the reasons, and the seconds it took.

    Peers in `later` are in the directory from the second round on; the names of peers asked are appended to `asked`.
    """

    def run(*peers, later=(), asked=None, **limits):
        def connect(name, address):
            if asked is not None:
                asked.append(name)
            return PeerClient(address, tls, "localhost")

        def directory():
            found = tuple(PeerAddress(peer.name, 1, (peer.address,)) for peer in known)
            known[len(peers) :] = later
            return [DirectoryReply("lineage", (VERSION,) * LAYOUT.width, found) for _ in range(LAYOUT.shards)]

        known = list(peers)
        limits = {"first_wait": 0.01, "budget": 60.0} | limits
        begun = time.monotonic()
        pulled, why = Peers(directory, connect, InOrder(), **limits).pull(NEWCOMER, LAYOUT)
        return pulled, why, time.monotonic() - begun

    return run


def test_peer_may_be_silent_for_some_of_its_steps(make_peer, pull):
    def slow(gone):
        yield Pace(PATIENCE / 2)
        yield part(0)
        gone.wait(PATIENCE + 1)
        yield from map(part, range(1, COUNT))

    pulled, why, seconds = pull(make_peer("a", slow), patience=PATIENCE)
    assert pulled is not None, why
    assert seconds > PATIENCE + 1
    assert pulled.versions == (VERSION,) * COUNT


def test_peer_that_sends_a_part_slowly_is_not_silent(make_peer, pull):
    def arrays(gone):
        for value in part(0)[1]:
            gone.wait(PATIENCE / 2)
            yield value

    def lazily(gone):
        yield part(0)[0], arrays(gone)
        yield from map(part, range(1, COUNT))

    pulled, why, seconds = pull(make_peer("a", lazily), patience=PATIENCE)
    assert pulled is not None, why
    assert seconds > PATIENCE


def test_next_peer_is_asked_when_one_falls_silent(make_peer, pull):
    silent = make_peer("a", paced(0.01))
    pulled, why, seconds = pull(silent, make_peer("b", whole), patience=PATIENCE)
    assert pulled.unit == "b"
    assert why == f"a: nothing came for {PATIENCE:g} s"
    assert seconds < PROMPT
    assert pull(silent, patience=PATIENCE)[0] is None
    assert silent.asked == 2, "once in each pull"


def test_few_of_many_unreachable_peers_are_tried_and_each_once(deaf, pull):
    asked = []
    gone = [SimpleNamespace(name=f"u{number:02}", address=deaf) for number in range(31)]
    pulled, why, seconds = pull(*gone, asked=asked, patience=0.3)
    assert pulled is None
    assert asked == [peer.name for peer in gone[:LOST_PEERS]]
    assert why.count("nothing came for 0.3 s") == NAMED and why.endswith(f"; and {LOST_PEERS - NAMED} more")
    assert seconds < PROMPT


def test_peer_that_is_too_slow_for_the_remaining_time_is_not_awaited(make_peer, pull):
    slow = make_peer("a", paced(31.0))
    pulled, why, seconds = pull(slow, budget=100.0)
    assert pulled is None
    assert why == f"a: {COUNT} fragments at a step of 31 s take {31 * COUNT} s, 100 s are left"
    assert seconds < PROMPT
    assert pull(slow, make_peer("b", whole), budget=100.0)[0].unit == "b"


def test_peer_that_declines_is_asked_three_times_at_most(make_peer, pull):
    busy = make_peer("a", "a is serving 2 others")
    pulled, why, _ = pull(busy)
    assert pulled is None
    assert why.endswith("a is serving 2 others")
    assert busy.asked == 3


def test_peer_that_declined_is_asked_again_after_those_not_asked_yet(make_peer, pull):
    asked = []
    busy, silent = make_peer("a", "a is serving 2 others", whole), make_peer("b", paced(0.01))
    assert pull(busy, later=[silent], asked=asked, patience=PATIENCE)[0].unit == "a"
    assert asked == ["a", "b", "a"]


def test_all_peers_together_have_one_budget(make_peer, pull):
    peers = [make_peer(name, paced(0.0)) for name in "ab"]
    pulled, why, seconds = pull(*peers, budget=3.0)
    assert pulled is None
    assert why.startswith("a: localhost:") and "DEADLINE_EXCEEDED" in why
    assert 2.9 <= seconds < PROMPT
    assert sum(peer.asked for peer in peers) == 1


def test_unit_sends_the_length_of_its_steps_and_then_its_captures():
    now = [0.0]
    snapshots = Snapshots([4, 4], (1, 1), lambda snapshot: None, lambda: now[0])
    for _ in range(3):
        assert snapshots.wanted((1, 1)) == NOTHING
        now[0] += 30.0
    left = []
    stream = TapStream(snapshots.tap((1, 1)), ((0, 4), (0, 4)), lambda: left.append(1))
    items = iter(stream)
    assert next(items) == Pace(30.0)
    values = np.ones(4, np.float32)
    with snapshots.lock:
        [tap] = snapshots.taps
        for number in (1, 0):
            tap.offer(Capture(number, 1, 3, values, values, values))
    assert [(head.number, head.start, head.stop) for head, _ in (next(items), next(items))] == [
        (1, 0, 4),
        (0, 0, 4),
    ]
    stream.close()
    stream.close()
    assert (list(items), left, snapshots.taps) == ([], [1], set())

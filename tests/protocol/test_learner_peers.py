"""Whom a newcomer asks for its state, and for how long: peers that are slow, silent, busy, gone, or too late."""

import random
import socket
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from atoll_runtime.learner.peers import LOST_PEERS, NAMED, Limits, Peers
from atoll_runtime.learner.serving import TapStream
from atoll_runtime.learner.snapshot import NOTHING, Capture, Snapshots
from atoll_runtime.sync.fragments import TensorInfo, build_layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress
from atoll_runtime.transport.peer import Pace, PeerClient, PeerServer, SnapshotHead
from atoll_runtime.transport.tls import Tls

pytestmark = pytest.mark.timeout(120)
LAYOUT = build_layout([TensorInfo(f"t{i}", (8,), False, False) for i in range(6)], 3, 2)
COUNT = len(LAYOUT.fragments)
NEWCOMER = SimpleNamespace(unit="new", incarnation=2)
VERSION = 5
SILENCE = 3.0
"""Seconds, for a peer that has much to say: its threads may have to wait for others on this machine."""
PROMPT = 25.0
"""Seconds that are enough on such a machine; whoever waits for a peer here to its end takes 30."""


def part(number):
    size = LAYOUT.fragments[number].size
    values = np.full(size, number, np.float32)
    return SnapshotHead(number, VERSION, 7, 0, size), (values, values, values)


def whole(gone):
    yield Pace(0.01)
    yield from map(part, range(COUNT))


def mute(gone):
    yield Pace(0.01)
    gone.wait(30)


def beating(gone, pace=0.01, seconds=30.0):
    end = time.monotonic() + seconds
    while not gone.wait(0.05) and time.monotonic() < end:
        yield Pace(pace)


class Peer:
    """A unit of one host, a real server: a script for each time that it is asked, or a text to say no with."""

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
    """The address of one that accepts connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        listener.listen(64)
        yield f"localhost:{listener.getsockname()[1]}"


@pytest.fixture
def pull(tls):
    """Pulls from these peers, in order of their names; what came, the reasons, and the seconds that it took.

    Those in `later` are in the directory from the second look on; `asked` is told the names of those asked.
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
        limits = Limits(**({"first_wait": 0.01, "budget": 60.0} | limits))
        begun = time.monotonic()
        pulled, why = Peers(directory, connect, InOrder(), limits).pull(NEWCOMER, LAYOUT)
        return pulled, why, time.monotonic() - begun

    return run


def test_a_peer_whose_steps_are_slow_is_waited_for_as_long_as_it_says_that_it_is_there(make_peer, pull):
    def slow(gone):
        yield part(0)
        yield from beating(gone, seconds=SILENCE + 1)
        yield from map(part, range(1, COUNT))

    pulled, why, seconds = pull(make_peer("a", slow), silence=SILENCE)
    assert pulled is not None, why
    assert seconds > SILENCE + 1
    assert pulled.versions == (VERSION,) * COUNT


def test_a_part_that_is_long_on_its_way_is_a_sign_of_life_too(make_peer, pull):
    def arrays(gone):
        for value in part(0)[1]:
            gone.wait(SILENCE / 2)
            yield value

    def lazily(gone):
        yield part(0)[0], arrays(gone)
        yield from map(part, range(1, COUNT))

    pulled, why, seconds = pull(make_peer("a", lazily), silence=SILENCE)
    assert pulled is not None, why
    assert seconds > SILENCE


def test_a_peer_that_falls_silent_is_left_for_the_next_one(make_peer, pull):
    silent = make_peer("a", mute)
    pulled, why, seconds = pull(silent, make_peer("b", whole), silence=SILENCE)
    assert pulled.unit == "b"
    assert why.endswith(f"silent for {SILENCE:g} s")
    assert seconds < PROMPT
    assert pull(silent, silence=SILENCE)[0] is None
    assert silent.asked == 2, "once in each pull, whatever its rounds"


def test_of_many_peers_that_cannot_be_reached_few_are_tried_and_each_once(deaf, pull):
    asked = []
    gone = [SimpleNamespace(name=f"u{number:02}", address=deaf) for number in range(31)]
    pulled, why, seconds = pull(*gone, asked=asked, contact=0.3)
    assert pulled is None
    assert asked == [peer.name for peer in gone[:LOST_PEERS]]
    assert why.count("no answer within 0.3 s") == NAMED and why.endswith(
        f"; and of {LOST_PEERS - NAMED} more"
    )
    assert seconds < PROMPT


def test_a_peer_too_slow_for_the_time_that_is_left_is_not_waited_for(make_peer, pull):
    slow = make_peer("a", lambda gone: beating(gone, pace=31.0))
    pulled, why, seconds = pull(slow, budget=100.0)
    assert pulled is None
    assert why == f"a: {COUNT} fragments at a step of 31 s take {31 * COUNT} s, 100 s are left"
    assert seconds < PROMPT
    assert pull(slow, make_peer("b", whole), budget=100.0)[0].unit == "b"


def test_a_peer_that_says_no_is_asked_three_times_at_most(make_peer, pull):
    busy = make_peer("a", "a is serving 2 others")
    pulled, why, _ = pull(busy)
    assert pulled is None
    assert why.endswith("a is serving 2 others")
    assert busy.asked == 3


def test_a_peer_that_said_no_is_asked_after_those_that_were_not_asked_and_may_have_time_by_then(
    make_peer, pull
):
    asked = []
    busy, silent = make_peer("a", "a is serving 2 others", whole), make_peer("b", mute)
    assert pull(busy, later=[silent], asked=asked, silence=SILENCE)[0].unit == "a"
    assert asked == ["a", "b", "a"]


def test_all_peers_together_have_one_budget_and_then_the_checkpoint_is_next(make_peer, pull):
    peers = [make_peer(name, lambda gone: beating(gone, pace=0.0)) for name in "ab"]
    pulled, why, seconds = pull(*peers, budget=3.0)
    assert pulled is None
    assert why == f"a: {COUNT} fragments are missing and the time for peers is over"
    assert 3.0 <= seconds < PROMPT
    assert sum(peer.asked for peer in peers) == 1


class Ticking:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def serving(step_seconds, patience):
    """Snapshots of a unit that made three steps of so many seconds, and a client's stream of them."""
    clock = Ticking()
    snapshots = Snapshots([4, 4], (1, 1), lambda snapshot: None, clock)
    for _ in range(3):
        assert snapshots.wanted((1, 1)) == NOTHING
        clock.now += step_seconds
    return snapshots, TapStream(snapshots.tap((1, 1)), ((0, 4), (0, 4)), patience, 0.05, lambda: None)


def test_a_unit_whose_steps_are_slow_says_so_at_once_and_while_its_client_waits():
    snapshots, stream = serving(step_seconds=30.0, patience=0.1)
    items = iter(stream)
    assert [next(items) for _ in range(6)] == [Pace(30.0)] * 6, "for longer than its patience"
    values = np.ones(4, np.float32)
    with snapshots.lock:
        [tap] = snapshots.taps
        tap.offer(Capture(1, 1, 3, values, values, values))
    head, _ = next(items)
    assert (head.number, head.start, head.stop) == (1, 0, 4)


def test_a_unit_that_makes_no_step_refuses_its_client_when_its_patience_is_over():
    _, stream = serving(step_seconds=0.01, patience=0.2)
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"no inner step took one of the 2 fragments .* for 0\.2 s"):
        list(stream)
    assert 0.2 <= time.monotonic() - begun < PROMPT


def test_a_host_that_has_sent_all_waits_for_the_others_of_its_unit():
    snapshots, stream = serving(step_seconds=0.01, patience=0.1)
    values = np.ones(4, np.float32)
    with snapshots.lock:
        [tap] = snapshots.taps
        for number in range(2):
            tap.offer(Capture(number, 1, 3, values, values, values))
    items = iter(stream)
    found = [next(items) for _ in range(8)]
    assert [item[0].number for item in found if not isinstance(item, Pace)] == [0, 1]
    assert found[3:] == [Pace(pytest.approx(0.01))] * 5, "for longer than its patience"

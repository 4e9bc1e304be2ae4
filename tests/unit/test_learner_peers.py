"""Seeding from peers that are slow, silent, busy, or too late. test_learner_seeding tests real peers."""

import random
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from atoll_runtime.learner.peers import Busy, Peers
from atoll_runtime.learner.snapshot import Capture
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress, SnapshotHead
from atoll_runtime.transport.transport import TransportError

LAYOUT = build_layout([TensorInfo(f"t{i}", (8,), False, False) for i in range(6)], 3, 2)
COUNT = len(LAYOUT.fragments)
NEWCOMER = SimpleNamespace(unit="new", incarnation=2)
VERSION = 5
PATIENCE = 1.0
"""Seconds, enough for a thread on a loaded machine."""
SILENCE = 30.0
"""Seconds for which a peer is silent."""
PROMPT = 25.0
WHOLE = tuple(range(COUNT))


class Peer:
    """A unit of one host. Its script has fragments to send and seconds to wait, or is the text of a refusal."""

    def __init__(self, name, script):
        self.name, self.script, self.asked = name, script, 0


class Client:
    """Replaces `PeerClient`."""

    def __init__(self, peer):
        self._peer, self._closed = peer, threading.Event()
        peer.asked += 1

    def snapshot(self, wanted, sizes, seconds):
        if isinstance(self._peer.script, str):
            raise Busy(self._peer.script)
        for each in self._peer.script:
            if isinstance(each, float):
                if self._closed.wait(min(each, seconds)) or each > seconds:
                    raise TransportError("the other end is silent")
            else:
                values = np.full(sizes[each], each, np.float32)
                yield Capture(SnapshotHead(each, VERSION, 7, 0, sizes[each]), values, values, values)

    def close(self):
        self._closed.set()


class InOrder(random.Random):
    """Chooses peers in the listed order."""

    def sample(self, population, k, **_):
        return list(population)[:k]


def pull(*peers, budget=60.0):
    """Seeds from these peers, in the given order. Returns what came, the last reason, and the seconds that it took."""
    known = {peer.name: peer for peer in peers}
    found = tuple(PeerAddress(name, 1, (name,)) for name in known)
    replies = [DirectoryReply("lineage", (VERSION,) * LAYOUT.width, found) for _ in range(LAYOUT.shards)]
    limits = {"budget": budget, "patience": PATIENCE, "first_wait": 0.01}
    begun = time.monotonic()
    asking = Peers(lambda: replies, lambda name, _: Client(known[name]), InOrder(), **limits)
    pulled, why = asking.pull(NEWCOMER, LAYOUT)
    return pulled, why, time.monotonic() - begun


def test_peer_whose_fragments_come_in_time_may_be_slow():
    pulled, why, seconds = pull(Peer("a", (*WHOLE[:-1], PATIENCE + 0.5, WHOLE[-1])))
    assert pulled is not None, why
    assert seconds > PATIENCE
    assert pulled.versions == (VERSION,) * COUNT


@pytest.mark.parametrize(("sent", "budget"), [(0, 60.0), (1, 4.0)])
def test_next_peer_is_asked_when_one_sends_too_little_for_the_time_left(sent, budget):
    lost = Peer("a", (*WHOLE[:sent], SILENCE))
    pulled, why, seconds = pull(lost, Peer("b", WHOLE), budget=budget)
    assert pulled.unit == "b"
    assert re.fullmatch(rf"a: {sent} of {COUNT} fragments came in \d s, \d+ s are left", why)
    assert seconds < PROMPT
    assert pull(lost, budget=budget)[0] is None
    assert lost.asked == 2, "once in each pull"


def test_peer_that_declines_is_asked_three_times_at_most():
    busy = Peer("a", "a is serving 2 others")
    pulled, why, _ = pull(busy)
    assert pulled is None
    assert why == "a: a is serving 2 others"
    assert busy.asked == 3


def test_all_peers_together_have_one_budget():
    peers = [Peer(name, (SILENCE,)) for name in "ab"]
    pulled, why, seconds = pull(*peers, budget=0.5)
    assert pulled is None
    assert why == "a: the other end is silent"
    assert 0.4 <= seconds < PROMPT
    assert sum(peer.asked for peer in peers) == 1

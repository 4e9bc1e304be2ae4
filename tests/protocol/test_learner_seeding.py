"""Where AdamW's moments and a new incarnation's state come from: a unit's saves, and peers that go on training."""

import random
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from protocol_parties import eventually

from atoll_runtime.checkpoint import arrays
from atoll_runtime.checkpoint.units import FragmentPart, UnitStore
from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec, OuterSpec, SyncerAddress, identity
from atoll_runtime.learner import optimiser, peers, seed
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.learner.peers import PeerClient
from atoll_runtime.learner.proposal import NOTHING
from atoll_runtime.learner.saver import Saver
from atoll_runtime.learner.serving import PeerServer
from atoll_runtime.learner.snapshot import Snapshots
from atoll_runtime.model import describe, initial
from atoll_runtime.protocol.fragments import build_layout, part_bounds
from atoll_runtime.simulate.blank import run_contract, unit_contract
from atoll_runtime.transport.messages import DirectoryReply, PeerAddress, SnapshotRequest
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.transport import Peer, TransportError

pytestmark = pytest.mark.timeout(300)  # 15 s alone, most of it the compiler's
SPEC = ModelSpec(dimensions=Dimensions(layers=2, width=16, heads=2, kv_heads=1, hidden=32))
BATCH, LENGTH, FRAGMENTS, SHARDS = 2, 8, 3, 2
LAYOUT = build_layout(describe(SPEC), FRAGMENTS, SHARDS)
COUNT = len(LAYOUT.fragments)
SIZES = [fragment.size for fragment in LAYOUT.fragments]
FILLED = COUNT - SIZES.count(0)
ONES = (1,) * COUNT
BUDGET = 4 * peers.PATIENCE
PROMPT = 25.0
"""Seconds, far below the budget of a pull."""
RUN = run_contract(
    model=SPEC,
    inner=InnerSpec(learning_rate=1e-2),
    outer=OuterSpec(fragments=FRAGMENTS, interval=FRAGMENTS, codec="float32"),
    shards=(SyncerAddress(host="localhost"),) * SHARDS,
    seed="Peer",
)


def tokens(step):
    return np.random.default_rng(step).integers(0, 256, (BATCH, LENGTH + 1)).astype(np.int32)


def whole(tensors):
    return {name: np.array(value) for name, value in tensors.items()}


def same(left, right):
    assert left.keys() == right.keys()
    for name, value in left.items():
        np.testing.assert_array_equal(value, right[name], err_msg=name)


@pytest.fixture(scope="module")
def mesh():
    return span(jax.devices()[:1])


@pytest.fixture(scope="module")
def agreement(mesh):
    return Agreement(mesh)


@pytest.fixture(scope="module")
def inner(mesh):
    """Trained a little, so that no moment is zero by chance; each test goes on with it."""
    inner = Inner(mesh, SPEC, RUN.inner, initial(SPEC), BATCH, LENGTH)
    for step in range(3):
        inner.step(tokens(step), 1e-2)
    return inner


@pytest.fixture(scope="module")
def fragments(mesh, inner):
    return Fragments(mesh, LAYOUT, inner.theta)


@pytest.fixture
def units(tmp_path):
    return UnitStore(f"file://{tmp_path}/run", RUN.uid, optimiser.saved(RUN.inner, LAYOUT.shapes))


class Learner:
    """A unit that steps its model in a thread and answers those who want its snapshots, as the loop does. It makes this
    number of captures."""

    def __init__(self, name, inner, fragments, folder, captures=10**6):
        self.name, self.inner, self.fragments = name, inner.twin(whole(inner.theta)), fragments
        self.versions = ONES
        self.steps = 0
        self.snapshots = Snapshots(fragments.bounds, ONES, lambda snapshot: None)
        self.server = PeerServer(RUN, unit_contract(name), LAYOUT, self.snapshots, Tls(folder), 0)
        self.address = f"localhost:{self.server.port}"
        self.gate = threading.Semaphore(captures)
        """One permit for each capture."""
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._train, daemon=True)

    def start(self):
        self._thread.start()
        eventually(lambda: self.snapshots.healthy)
        return self

    def halt(self):
        self._halt.set()
        if self._thread.is_alive():
            self._thread.join(60)
        self.snapshots.close()
        self.server.close()

    def _train(self):
        """Steps as `Loop` makes them."""
        while not self._halt.wait(0.002):
            versions = self.versions
            wanted = self.snapshots.wanted(versions)
            if wanted != NOTHING and self.gate.acquire(blocking=False):
                self.snapshots.capture(wanted, versions[wanted], self.inner, self.fragments)
            loss = self.inner.step(tokens(self.steps), 1e-3)
            self.snapshots.collect()
            float(loss)
            self.steps += 1


@pytest.fixture
def certificates(authority):
    """By unit, the folder of its identity."""
    run = authority("run")
    return {
        name: run.issue(name, identity(RUN.namespace, RUN.name, "unit", name)) for name in ("new", "a", "b")
    }


@pytest.fixture
def make_learner(inner, fragments, certificates):
    learners = []

    def make(name="a", **options):
        learners.append(Learner(name, inner, fragments, certificates[name], **options))
        return learners[-1]

    yield make
    for learner in learners:
        learner.halt()


@pytest.fixture
def pull_from(certificates, agreement, monkeypatch):
    """Seeds a unit from these learners, which it asks in this order."""
    monkeypatch.setattr(random, "shuffle", lambda found: found.sort(key=lambda peer: peer.unit))

    def pull(*learners, versions=ONES, budget=60.0, asked=lambda: None):
        found = tuple(PeerAddress(each.name, 1, (each.address,)) for each in learners)
        width = LAYOUT.width

        def shard(s):
            reply = DirectoryReply(f"of shard {s}", tuple(versions[s * width : (s + 1) * width]), found)
            return SimpleNamespace(directory=lambda _: asked() or reply)

        networks = [shard(s) for s in range(SHARDS)]
        tls = Tls(certificates["new"])
        return seed.from_peer(unit_contract("new"), LAYOUT, agreement, networks, tls, budget)

    return pull


@pytest.fixture
def pass_time(monkeypatch):
    """Lets time pass for a pull when so many parts of `a` have come, 20 s at each look up to 100 s, and then calls
    `late`. So the time that the machine takes does not count."""
    clock = SimpleNamespace(now=0.0, came=0, asked="")
    add, ask = peers.Pulled.add, peers._from

    def added(pulled, host, capture):
        add(pulled, host, capture)
        clock.came += pulled.unit == "a"

    def asked(peer, *rest):
        clock.asked = peer.unit
        return ask(peer, *rest)

    def passing(sent, late=lambda: None):
        def look():
            if clock.asked == "a" and clock.came == sent and clock.now < 100.0:
                clock.now += 20.0
                if clock.now == 100.0:
                    late()
            return clock.now

        monkeypatch.setattr(peers, "time", SimpleNamespace(monotonic=look))

    monkeypatch.setattr(peers.Pulled, "add", added)
    monkeypatch.setattr(peers, "_from", asked)
    return passing


def roll(inner, fragments, save, cut):
    """A whole snapshot between two steps."""
    snapshots = Snapshots(fragments.bounds, ONES, save)
    snapshots.record(cut, cut + 7)
    while (number := snapshots.wanted(ONES)) != NOTHING:
        snapshots.capture(number, 1, inner, fragments)
        snapshots.collect()


def write_hosts(units, tensors, cut=10, hosts=1, devices=1, layout=LAYOUT, only=None, incarnation=1):
    """A save of `hosts` hosts with `devices` each; `mu` and its square as `nu`."""
    for host in range(hosts) if only is None else only:
        parts = {}
        for number, fragment in enumerate(layout.fragments):
            split = part_bounds(fragment.size, hosts * devices)
            mine = split[host * devices : (host + 1) * devices]
            start, stop = mine[0][0], mine[-1][1]
            padded = np.zeros(split[-1][1], np.float32)
            padded[: fragment.size] = layout.flatten(tensors, number)
            if fragment.size:
                parts[number] = FragmentPart(start, stop, 1, padded[start:stop], padded[start:stop] ** 2)
        unit = unit_contract("a", incarnation, host=host, hosts=hosts)
        units.save(unit, layout, cut, cut + 7, 9, parts)


def test_moments_do_not_depend_on_the_hosts_devices_and_shards_that_saved_them(units):
    tensors = initial(SPEC)
    write_hosts(units, tensors, hosts=3, devices=2, layout=LAYOUT.split(1))
    save, skipped = units.newest("a", LAYOUT)
    assert not skipped
    same(save.moments.mu, tensors)
    same(save.moments.nu, {name: value**2 for name, value in tensors.items()})


@pytest.mark.parametrize(("hosts", "readers"), [(4, 4), (8, 4), (4, 8), (1, 3), (3, 1)])
def test_hosts_read_a_save_once_between_them_and_each_its_share(units, monkeypatch, hosts, readers):
    tensors, asked, real = initial(SPEC), [], arrays.read

    def read(requests, ask):
        asked[-1] += sum(request.size for request in requests)
        return real(requests, ask)

    monkeypatch.setattr(arrays, "read", read)
    write_hosts(units, tensors, hosts=hosts, devices=2)
    joined = {name: np.zeros_like(value) for name, value in tensors.items()}
    for reader in range(readers):
        asked.append(0)
        save, _ = units.newest("a", LAYOUT, share=(reader, readers))
        for name, value in save.moments.mu.items():
            assert not (joined[name].astype(bool) & value.astype(bool)).any()
            joined[name] += value
    same(joined, tensors)
    padded = sum(part_bounds(size, 2 * hosts)[-1][1] for size in SIZES if size)
    assert sum(asked) == 2 * 4 * padded
    if hosts % readers == 0:
        assert asked == [sum(asked) // readers] * readers
    else:
        assert max(asked) - min(asked) <= 2 * 4 * 2 * max(SIZES) // hosts


def test_damaged_half_written_and_foreign_saves_are_skipped_with_their_reason(units, tmp_path):
    tensors = initial(SPEC)
    write_hosts(units, tensors, cut=10)
    write_hosts(units, tensors, cut=20)
    write_hosts(units, tensors, cut=30, hosts=2, only=[1])
    write_hosts(units, {name: value * np.nan for name, value in tensors.items()}, cut=40)
    write_hosts(units, tensors, cut=50, layout=build_layout(describe(SPEC), FRAGMENTS + 1, SHARDS))
    write_hosts(units, tensors, cut=60, hosts=2, only=[0], incarnation=1)
    write_hosts(units, tensors, cut=60, hosts=2, only=[1], incarnation=2)
    damaged = max((tmp_path / "run/units/a/20/host-0-of-1/d").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    save, skipped = units.newest("a", LAYOUT)
    assert save.cut == 10
    assert [each.step for each in skipped] == [60, 50, 40, 30, 20]
    reasons = {each.step: each.reason for each in skipped}
    assert "hosts of different saves: incarnation [1, 2]" in reasons[60]
    assert "fragment layout" in reasons[50]
    assert "not finite" in reasons[40]
    assert "half-written" in reasons[30]
    assert "the checksum does not match" in reasons[20]


def test_healed_unit_has_the_moments_bit_for_bit_and_makes_the_same_step(units, mesh, inner, fragments):
    saver = Saver(units, unit_contract("a"), LAYOUT)
    roll(inner, fragments, saver.put, cut=240)
    saver.close(60)
    theta = whole(inner.theta)
    save, skipped = units.newest("a", LAYOUT)
    assert not skipped
    assert save.cut == 240
    assert save.moments.count == inner.updates > 0
    for kind, value in zip((save.moments.mu, save.moments.nu), inner.moments, strict=True):
        same(kind, whole(value))
    healed = Inner(mesh, SPEC, RUN.inner, theta, BATCH, LENGTH, save.moments)
    losses = [each.step(tokens(77), 3e-3) for each in (inner, healed)]
    assert float(losses[0]) == float(losses[1])
    same(whole(healed.theta), whole(inner.theta))
    for kind, value in zip(healed.moments, inner.moments, strict=True):
        same(whole(kind), whole(value))
    assert healed.updates == inner.updates


def test_cut_that_comes_while_another_is_captured_is_not_saved(inner, fragments):
    done = []
    snapshots = Snapshots(fragments.bounds, ONES, done.append)
    for step in range(2 * COUNT):
        if step in (0, 1, COUNT):
            snapshots.record(10 + step, step)
        if (number := snapshots.wanted(ONES)) != NOTHING:
            snapshots.capture(number, 1, inner, fragments)
        snapshots.collect()
    assert [each.cut for each in done] == [10, 10 + COUNT]
    rolled = [number for number, size in enumerate(SIZES) if size]
    assert [[each.head.number for each in snapshot.captures] for snapshot in done] == [rolled, rolled]


def test_cut_is_not_captured_if_the_optimiser_cannot_be_saved(fragments):
    snapshots = Snapshots(fragments.bounds, ONES, None)
    snapshots.record(10, 17)
    assert snapshots.wanted(ONES) == NOTHING


def test_save_that_fails_or_comes_during_another_is_left_to_the_next_cut(
    units, inner, fragments, tmp_path, monkeypatch, caplog
):
    obstacle, saver = tmp_path / "run", Saver(units, unit_contract("a"), LAYOUT)
    obstacle.write_text("a file where the bucket should be")
    roll(inner, fragments, saver.put, cut=10)
    saver.close(60)
    assert "moments at step 10 were not saved, training goes on" in caplog.text
    obstacle.unlink()
    released, real = threading.Event(), UnitStore.save
    monkeypatch.setattr(UnitStore, "save", lambda *given: released.wait(60) and real(*given))
    for cut in (20, 30):
        roll(inner, fragments, saver.put, cut=cut)
    assert "moments at step 30 are not saved" in caplog.text
    released.set()
    saver.close(60)
    assert units.saves()["a"].keys() == {20} and saver.saved == 1


def test_unit_gets_a_peers_state_while_the_peer_trains_on(make_learner, pull_from, fragments, inner):
    anchors = {}
    for number, size in enumerate(SIZES):
        if size:
            anchor = np.asarray(fragments.capture(inner.moments, number)[0])[:size]
            LAYOUT.unflatten(number, anchor, anchors)
    learner = make_learner().start()
    learner.versions = tuple(range(5, 5 + COUNT))
    before = learner.steps
    found = pull_from(learner, versions=(5,) * COUNT)
    taken = learner.steps - before
    assert found.message == f"seeded from peer a at step {4 + COUNT}"
    assert found.cut.versions == tuple(
        version if size else 5 for version, size in zip(learner.versions, SIZES, strict=True)
    )
    assert taken >= COUNT - SIZES.count(0) - 1, "one fragment a step; the last step need not have ended"
    assert found.cut.meta["lineages"] == [f"of shard {s}" for s in range(SHARDS)]
    same(found.cut.theta, anchors)
    assert all(value.any() for value in found.moments.nu.values())
    assert 0 < found.moments.count <= learner.inner.updates
    eventually(lambda: not learner.snapshots.taps)
    moving = learner.steps
    eventually(lambda: learner.steps > moving)


def test_next_peer_seeds_when_one_dies_in_the_middle(make_learner, pull_from):
    dying, healthy = make_learner("a", captures=2).start(), make_learner("b").start()
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(pull_from, dying, healthy)
        eventually(lambda: not dying.gate._value and len(dying.snapshots.taps) == 1)
        dying.halt()
        assert found.result(60).message.startswith("seeded from peer b at step 1; a: ")
    assert pull_from(dying).startswith("not seeded from a peer: a: localhost:")


@pytest.mark.parametrize("sent", [0, 1])
def test_next_peer_seeds_when_one_sends_too_little_for_the_time_left(
    make_learner, pull_from, pass_time, sent
):
    slow, prompt = make_learner("a", captures=sent).start(), make_learner("b").start()
    pass_time(sent)
    found = pull_from(slow, prompt, budget=BUDGET)
    why = rf"seeded from peer b at step 1; a: {sent} of {FILLED} fragments came in 80 of \d+ s"
    assert re.fullmatch(why, found.message)


def test_peer_whose_fragments_come_in_time_may_be_slow(make_learner, pull_from, pass_time):
    learner, late = make_learner(captures=FILLED - 1).start(), []
    pass_time(FILLED - 1, lambda: late.append(learner.gate.release()))
    assert pull_from(learner, budget=BUDGET).message == "seeded from peer a at step 1"
    assert late


def test_all_peers_together_have_one_budget(make_learner, pull_from):
    silent = [make_learner(name, captures=0).start() for name in "ab"]
    begun = time.monotonic()
    assert pull_from(*silent, budget=0.5).startswith("not seeded from a peer: a: ")
    assert time.monotonic() - begun < PROMPT


def test_next_peer_seeds_when_one_declines(make_learner, pull_from):
    idle, healthy = make_learner("a"), make_learner("b").start()
    found = pull_from(idle, healthy)
    declined = f"a: {idle.address}: a has not caught up itself"
    assert found.message == f"seeded from peer b at step 1; {declined}"
    assert pull_from(idle) == f"not seeded from a peer: {declined}"


def stream(folder, address, seconds=60.0, **changes):
    """A connection to a peer, and the parts that come."""
    asked = {"unit": "new", "shards": SHARDS, "least": ONES} | changes
    client = PeerClient(address, Tls(folder), "localhost")
    request = SnapshotRequest(incarnation=1, fingerprint=LAYOUT.fingerprint, **asked)
    return client, client.snapshot(request, tuple(SIZES), seconds)


def test_dead_client_frees_its_slot(make_learner, certificates):
    learner = make_learner().start()
    learner.gate = threading.Semaphore(1)
    client, parts = stream(certificates["new"], learner.address)
    assert next(parts).head.version == 1
    assert len(learner.snapshots.taps) == 1
    client.close()
    eventually(lambda: not learner.snapshots.taps)
    assert learner.snapshots.wanted(ONES) == NOTHING
    with pytest.raises((TransportError, ValueError)):
        list(parts)


def test_peer_without_a_further_thread_keeps_no_slot(make_learner, monkeypatch):
    learner, asking = make_learner(), Peer((identity(RUN.namespace, RUN.name, "unit", "new"),), "here")
    learner.snapshots.healthy = True

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    request = SnapshotRequest("new", 1, LAYOUT.fingerprint, SHARDS, ONES)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        learner.server.serve(SimpleNamespace(shut=lambda: None), asking, request)
    assert not learner.snapshots.taps


@pytest.mark.parametrize(
    "address", ["", "nowhere", "localhost:x", "localhost:" + "9" * 30, "a" * 64 + ".b:1"]
)
def test_peer_that_gives_no_address_is_passed_over(address, certificates):
    """A unit says itself where it serves; what it says must not end another unit."""
    _, parts = stream(certificates["new"], address, 1.0)
    with pytest.raises(TransportError):
        next(parts)


def test_peer_that_reaches_the_wanted_versions_serves(make_learner, certificates):
    learner = make_learner().start()
    timer = threading.Timer(0.1, lambda: setattr(learner, "versions", (9,) * COUNT))
    timer.start()
    _, parts = stream(certificates["new"], learner.address, least=(9,) * COUNT)
    assert next(parts).head.version == 9
    timer.join()


def test_peer_declines_units_that_it_may_not_or_cannot_serve(make_learner, certificates):
    learner, new = make_learner(captures=0).start(), certificates["new"]

    def declined(reason, folder=new, **changes):
        with pytest.raises(TransportError, match=reason):
            next(stream(folder, learner.address, **changes)[1])

    declined("the certificate is not that of unit 'b' of this run", unit="b")
    declined(f"another fragment layout: this unit has {COUNT} in 2 shards", shards=1)
    declined("incarnation 1 of 'a' asks itself", certificates["a"], unit="a")
    slow = [stream(new, learner.address)[1] for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(next, each) for each in slow]
        eventually(lambda: len(learner.snapshots.taps) == 2)
        declined("a is serving 2 others")
        learner.gate.release(1)
        assert [part.result(60).head.number for part in parts] == [0, 0], "one capture serves both"
    for each in slow:
        each.close()
    eventually(lambda: not learner.snapshots.taps)


def test_reason_is_reported_without_a_peer_or_a_directory(pull_from):
    def refuse():
        raise TransportError("localhost:1: refused")

    assert pull_from() == "not seeded from a peer: no peer is learning"
    assert pull_from(versions=(0,) * COUNT).endswith(": no peer is learning: nothing was merged yet")
    assert pull_from(asked=refuse) == "not seeded from a peer: no directory: localhost:1: refused"

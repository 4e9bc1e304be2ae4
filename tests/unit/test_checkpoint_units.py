"""Saves of units at a URI with saves of an earlier run or of a history that was rolled back."""

import itertools
import math
import re
import threading
import time
import tracemalloc

import jax
import numpy as np
import pytest

from atoll_runtime.checkpoint import Bucket, Cut, GlobalStore, StoreError, arrays
from atoll_runtime.checkpoint.deadline import late
from atoll_runtime.checkpoint.store import MOST_KEPT
from atoll_runtime.checkpoint.units import FragmentPart, UnitStore
from atoll_runtime.learner import seed
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.mesh import span
from atoll_runtime.learner.saver import Saver
from atoll_runtime.learner.snapshot import Capture, Snapshot
from atoll_runtime.learner.start import start_of
from atoll_runtime.protocol.fragments import TensorInfo, build_layout
from atoll_runtime.simulate.blank import unit_contract
from atoll_runtime.transport.messages import SnapshotHead

LAYOUT = build_layout([TensorInfo("w", (8,), False, False)], 1)
KEEP = 2
ADAMW = "adamw(mu, nu)"


@pytest.fixture
def uri(tmp_path):
    return f"file://{tmp_path}/run"


def write(
    uri,
    cut,
    run="new",
    unit="a",
    host=0,
    hosts=1,
    keep=KEEP,
    incarnation=1,
    began=0.0,
    now=math.inf,
):
    """Saves one host's part, with `cut` as its moments. Host 0, which began at `began`, also removes old saves."""
    store = UnitStore(uri, run, ADAMW)
    values = np.full(8 // hosts, cut, np.float32)
    start = host * len(values)
    parts = {0: FragmentPart(start, start + len(values), cut, values, values)}
    contract = unit_contract(unit, incarnation, host=host, hosts=hosts)
    store.save(contract, LAYOUT, cut, cut, cut, parts)
    if host == 0 and keep:
        store.prune(unit, keep, cut, incarnation, began, now)


def held(uri, unit="a"):
    return UnitStore(uri, "new", ADAMW).saves()[unit]


def newest(uri, run="new", unit="a", runs=()):
    save, skipped = UnitStore(uri, run, ADAMW).newest(unit, LAYOUT, runs)
    return None if save is None else save.moments.count, skipped


class Killed(BaseException):
    """Nothing of the process runs any more."""


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
def test_a_learner_that_is_killed_at_any_change_of_the_bucket_has_a_whole_save_and_makes_the_next(
    tmp_path, monkeypatch, done
):
    left = 0

    def dying(real):
        def change(*given, **more):
            nonlocal left
            left -= 1
            if left == 0 and not done:
                raise Killed
            found = real(*given, **more)
            if left == 0:
                raise Killed
            return found

        return change

    for owner, name in ((Bucket, "write"), (Bucket, "delete"), (Bucket, "delete_tree"), (arrays, "write")):
        monkeypatch.setattr(owner, name, dying(getattr(owner, name)))
    for died in itertools.count(1):
        uri, left = f"file://{tmp_path}/{died}", 0
        for cut in (10, 20, 30):
            write(uri, cut)
        left = died
        try:
            write(uri, 40)
        except Killed:
            assert newest(uri)[0] in (30, 40)
            write(uri, 50)
            assert newest(uri)[0] == 50 and len(held(uri)) <= KEEP + 1
        else:
            break
    assert died > 4


@pytest.mark.parametrize(
    ("before", "now", "incarnation"),
    [
        pytest.param([(4900, "old", 1), (5000, "old", 1)], (100, 200, 300), 1, id="an earlier run's"),
        pytest.param([(5000, "old", 7)], (100, 200), 1, id="an earlier run's, of a later incarnation"),
        pytest.param([(20, "new", 1), (30, "new", 1)], (12, 14, 16), 1, id="rolled back"),
        # The journal was lost, and the recreated unit got an incarnation that it had before.
        pytest.param(
            [(805, "new", 7), (905, "new", 7)], (600, 700, 800), 4, id="rolled back, and a later one's"
        ),
    ],
)
def test_newer_saves_of_another_history_neither_shadow_nor_outlive_this_ones(uri, before, now, incarnation):
    for cut, run, its in before:
        write(uri, cut, run, incarnation=its)
    began = time.time()
    for cut in now:
        write(uri, cut, incarnation=incarnation, began=began)
        assert newest(uri) == (cut, [])
    assert held(uri) == dict.fromkeys(now[:-3:-1], 1)


def test_on_several_hosts_the_earlier_runs_go_when_one_of_this_run_is_whole(uri):
    for cut in (4900, 5000):
        write(uri, cut, "old", keep=0)
    write(uri, 100, host=0, hosts=2)
    assert held(uri) == {5000: 1, 4900: 1, 100: 0}
    assert newest(uri, "old") == (5000, [])
    write(uri, 100, host=1, hosts=2)
    write(uri, 300, host=1, hosts=2)  # ahead of host 0
    write(uri, 200, host=0, hosts=2)
    assert held(uri) == {300: 0, 200: 0, 100: 2}


def test_an_incarnation_that_thaws_removes_nothing_of_its_successors(uri):
    write(uri, 80)
    for cut in (60, 120, 140):  # the successor began before the cut at which its predecessor was frozen
        write(uri, cut, incarnation=2, keep=0)
    write(uri, 100)
    assert held(uri) == {140: 1, 120: 1, 100: 1, 80: 1, 60: 1}
    assert newest(uri) == (140, [])
    write(uri, 160, incarnation=2)
    assert held(uri) == {160: 1, 140: 1}


@pytest.mark.parametrize(("before", "now"), [(2, 1), (1, 2)])
def test_a_save_of_another_number_of_hosts_at_the_same_cut_gives_way(uri, before, now):
    for host in range(before):
        write(uri, 20, "old", host=host, hosts=before)
    for host in range(now):
        write(uri, 20, host=host, hosts=now)
    assert held(uri) == {20: now}
    assert newest(uri) == (20, [])


def test_a_manifest_that_does_not_say_whose_it_is_is_named_with_the_field(uri):
    write(uri, 20)
    bucket, name = Bucket(uri), "units/a/20/host-0-of-1.json"
    bucket.write(name, bucket.read(name).replace(b'"run_uid":"new",', b""))
    found, skipped = newest(uri)
    assert found is None
    assert skipped[0].reason == f"{uri}/{name}: run_uid: Field required"


@pytest.fixture
def listings(monkeypatch):
    """Prefixes that are listed from then on."""
    listed, real = [], Bucket.list

    def listing(self, prefix=""):
        listed.append(prefix)
        return real(self, prefix)

    monkeypatch.setattr(Bucket, "list", listing)
    return listed


def test_a_unit_lists_no_saves_but_its_own_when_it_saves_and_when_it_is_seeded(uri, agreement, listings):
    checkpoint(uri, 10, "new")
    for unit in ("b", "a", "aa"):
        for cut in (10, 20, 30):
            write(uri, cut, unit=unit)
    assert held(uri) == {30: 1, 20: 1}
    listings.clear()
    write(uri, 40)
    assert seeded(uri, agreement).message == "seeded from step 10; moments from step 40 of a"
    folders = [prefix for prefix in listings if prefix.startswith("units")]
    assert folders and all(folder == "units/a" or folder.startswith("units/a/") for folder in folders)


def test_a_unit_without_a_save_lists_those_of_all_once_and_looks_at_a_few_only(uri, agreement, listings):
    checkpoint(uri, 10, "new")
    for number in range(seed.LOOKS + 8):
        write(uri, 10, "old", unit=f"old-{number:02}", keep=0)
    write(uri, 10, unit="x")
    listings.clear()
    assert seeded(uri, agreement).message == "seeded from step 10; moments of zero"
    assert [prefix for prefix in listings if prefix.startswith("units")] == ["units/a", "units"]
    write(uri, 20, unit="x")
    assert seeded(uri, agreement).message == "seeded from step 10; moments from step 20 of x"


@pytest.fixture(scope="module")
def agreement():
    return Agreement(span(jax.devices()[:1]))


def test_moments_stand_though_older_ones_may_not_be_removed(uri, monkeypatch, caplog):
    """They are not removed and written again either."""
    store, asked, written = UnitStore(uri, "new", ADAMW), threading.Event(), []
    real = Bucket.write
    monkeypatch.setattr(
        Bucket, "write", lambda self, path, data: (written.append(path), real(self, path, data))
    )

    def refused(*_):
        asked.set()
        raise StoreError("429 Too Many Requests")

    monkeypatch.setattr(UnitStore, "prune", refused)
    saver, values = Saver(store, unit_contract(), LAYOUT), np.ones(8, np.float32)
    capture = Capture(SnapshotHead(0, 10, 1, 0, 8), np.empty(0, np.float32), values, values)
    saver.put(Snapshot(10, 1, (capture,)))
    assert asked.wait(30)
    saver.close(30)
    assert saver.saved == 1
    assert written == ["units/a/10/host-0-of-1.json"] and newest(uri) == (1, [])
    assert "older moments were not removed, the next save tries again: 429" in caplog.text


def checkpoint(uri, step, run):
    values = {"w": np.full(8, step, np.float32)}
    meta = {"fingerprint": LAYOUT.fingerprint, "run_uid": run}
    GlobalStore(uri).save(Cut(step, values, values, (step,), meta))


def seeded(uri, agreement, unit="a", optimizer=ADAMW):
    units = UnitStore(uri, "new", optimizer)
    return seed.from_checkpoint(GlobalStore(uri), units, unit, LAYOUT, agreement)


def test_a_run_that_goes_on_from_an_earlier_ones_checkpoint_takes_its_moments_too(uri, agreement):
    checkpoint(uri, 5000, "old")
    write(uri, 5000, "old")
    assert seeded(uri, agreement).message == "seeded from step 5000; moments from step 5000 of a"


@pytest.mark.parametrize("optimizer", ["lion(mu)", "rmsprop(nu)", "rmsprop(mu, nu)", ""])
def test_another_optimiser_gets_no_moments_of_an_earlier_runs_one(uri, agreement, optimizer):
    checkpoint(uri, 5000, "old")
    write(uri, 5000, "old")
    found = seeded(uri, agreement, optimizer=optimizer)
    assert (found.message, found.moments) == ("seeded from step 5000; moments of zero", None)


@pytest.mark.parametrize(
    ("run", "at"), [pytest.param("new", (7, 90, 500), id="own"), pytest.param("old", (0, 0, 0), id="earlier")]
)
def test_without_a_syncer_a_unit_goes_on_where_a_checkpoint_of_its_own_run_says(agreement, run, at):
    record = {"merged_step": 7, "merged_cursor": 90, "account": {"merged": 900, "owned": [0, 1, 2]}}
    other = {"account": {"merged": 601, "owned": [0, 1, 2]}}
    meta = {"run_uid": run, "machines": [{"units": {"a": record, "b": other, "c": {}}}, {}]}
    start = start_of(None, agreement, Cut(10, {}, {}, (10,), meta), "new", "a", True)
    assert (start.inner_step, start.cursor, start.merged) == at
    assert (start.global_step, start.targets) == (10, (10,))


def test_a_fresh_model_never_gets_an_earlier_runs_moments_and_finds_its_own_behind_them(uri, agreement):
    checkpoint(uri, 10, "new")
    for number in range(6):
        write(uri, 5000 + number, "old", unit=f"old-{number}")
    found = seeded(uri, agreement)
    assert (found.message, found.moments) == ("seeded from step 10; moments of zero", None)
    write(uri, 10, unit="b")
    assert seeded(uri, agreement).message == "seeded from step 10; moments from step 10 of b"


def test_a_save_that_was_the_newest_until_just_now_stays_for_a_unit_that_reads_it(
    uri, agreement, monkeypatch
):
    checkpoint(uri, 10, "new")
    for cut in (10, 20):
        write(uri, cut, unit="x")
    real, later = UnitStore._read, [30, 40]

    def slow(*args):
        while later:
            write(uri, later.pop(0), unit="x", now=time.time())
        return real(*args)

    monkeypatch.setattr(UnitStore, "_read", slow)
    assert seeded(uri, agreement).message == "seeded from step 10; moments from step 20 of x"
    assert not later
    for cut in range(50, 150, 10):
        write(uri, cut, unit="x", now=time.time())
    assert len(held(uri, "x")) == MOST_KEPT * KEEP


def silent(monkeypatch, silence):
    """Makes the bucket not answer reads of the objects in the list `silence`. Each such read removes its entry."""
    real = Bucket.read

    def read(self, path, *span):
        if path in silence:
            silence.remove(path)
            raise StoreError(f"{self.address(path)}: no answer within 60 s")
        return real(self, path, *span)

    monkeypatch.setattr(Bucket, "read", read)


def test_a_bucket_that_is_silent_for_a_moment_seeds_nothing_older(uri, agreement, monkeypatch):
    checkpoint(uri, 10, "new")
    checkpoint(uri, 20, "new")
    monkeypatch.setattr(seed, "FIRST_WAIT", 0.01)
    silence = ["global/20/manifest.json", "global/20/shard-0-of-1.json"]
    silent(monkeypatch, silence)
    assert seeded(uri, agreement).cut.step == 20
    assert not silence


@pytest.mark.parametrize(
    "save",
    [lambda uri: write(uri, 20), lambda uri: checkpoint(uri, 20, "newer")],
    ids=["of a unit", "of a shard"],
)
def test_a_save_that_is_refused_for_a_late_call_leaves_the_complete_one(uri, save, eventually):
    write(uri, 20)
    checkpoint(uri, 20, "new")
    before, released = Bucket(uri).list(), threading.Event()
    with pytest.raises(TimeoutError):
        arrays._in_time(0.01, lambda: released.wait(60), "gs://b/x")
    try:
        with pytest.raises(StoreError, match=f"{uri}: an earlier call has not come back: gs://b/x"):
            save(uri)
        assert Bucket(uri).list() == before
    finally:
        released.set()
        eventually(lambda: not late(arrays.CALLS))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(1.3, "moments from step 20 of a"), (60.0, "moments of zero; .* an earlier call has not come back: .*")],
    ids=["comes back", "never"],
)
def test_moments_are_asked_for_again_when_a_late_call_has_come_back(
    uri, agreement, monkeypatch, eventually, seconds, told
):
    checkpoint(uri, 20, "new")
    write(uri, 20)
    monkeypatch.setattr(seed, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(seed, "LONGEST_WAIT", 0.01)
    released, real = threading.Event(), arrays._read

    def hang(requests):
        if "/units/" in requests[0].uri:
            monkeypatch.setattr(arrays, "_read", real)
            released.wait(seconds)
        return real(requests)

    monkeypatch.setattr(arrays, "_read", hang)
    monkeypatch.setattr(arrays, "TIMEOUT", 1.0)
    try:
        assert re.fullmatch(f"seeded from step 20; {told}", seeded(uri, agreement).message)
    finally:
        released.set()
        eventually(lambda: not late(arrays.CALLS))


@pytest.mark.parametrize(
    ("times", "told", "moments"),
    [
        (2, r"moments from step 20 of a", 20),
        (
            seed.MOMENTS_ATTEMPTS,
            r"moments of zero; file://.*units/a/20/host-0-of-1.json: no answer within 60 s",
            None,
        ),
    ],
    ids=["for a moment", "for long"],
)
def test_a_bucket_that_is_silent_gives_no_older_moments(uri, agreement, monkeypatch, times, told, moments):
    checkpoint(uri, 20, "new")
    write(uri, 10)
    write(uri, 20)
    monkeypatch.setattr(seed, "FIRST_WAIT", 0.01)
    silence = ["units/a/20/host-0-of-1.json"] * times
    silent(monkeypatch, silence)
    found = seeded(uri, agreement)
    assert re.fullmatch(f"seeded from step 20; {told}", found.message)
    assert (None if found.moments is None else found.moments.count) == moments
    assert not silence


def test_host_0_holds_moments_once_while_it_loads_them(uri, monkeypatch):
    """With Θ they are all that it has room for; see docs/models.md."""
    size, count = 1 << 16, 16
    wanted = build_layout([TensorInfo(f"w{n}", (size,), False, False) for n in range(count)], count)
    store, values = UnitStore(uri, "new", ADAMW), np.ones(size, np.float32)
    parts = {n: FragmentPart(0, size, 1, values, values) for n in range(count)}
    store.save(unit_contract(), wanted, 10, 1, 1, parts)
    real = arrays.read
    monkeypatch.setattr(arrays, "read", lambda *asked: map(np.array, real(*asked)))  # whose memory is traced
    tracemalloc.start()
    try:
        save, _ = store.newest("a", wanted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(save.moments.mu) == len(save.moments.nu) == count
    assert peak < 1.5 * 8 * size * count

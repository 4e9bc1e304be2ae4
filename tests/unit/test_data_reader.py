"""Data sets: written, addressed by index, permuted, prefetched."""

import json
import threading
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.checkpoint import Bucket, StoreError
from atoll_runtime.data import DataError, Prefetch, Reader, Stream, write_stdlib, write_text
from atoll_runtime.data import reader as reader_module
from atoll_runtime.data.stream import permute
from atoll_runtime.data.writer import held_out
from atoll_runtime.learner.loop import DATA_TIMEOUT

LENGTH = 32


DOCUMENTS = [(f"{n:03}.txt", f"document {n}: {'abcdefgh' * (20 + n)}".encode()) for n in range(80)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    uri = f"file://{tmp_path_factory.mktemp('data')}/set"
    write_text(uri, DOCUMENTS, source="test", shard_bytes=1000)
    return uri


@pytest.fixture
def broken(dataset, tmp_path):
    """A copy that the test may damage, and its bucket."""
    source, copy = Bucket(dataset), Bucket(f"file://{tmp_path}/broken")
    for name in source.list():
        copy.write(name, source.read(name))
    return copy


def text_of(split):
    return b"".join(text + b"\0" for name, text in DOCUMENTS if held_out(name) == (split == "heldout"))


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_example_i_is_the_text_at_its_place_also_across_shards(dataset, split):
    reader, text = Reader(dataset, split, LENGTH), text_of(split)
    assert reader.examples == (len(text) - 1) // LENGTH
    for index in reversed(range(reader.examples)):
        expected = text[index * LENGTH : index * LENGTH + LENGTH + 1]
        assert bytes(reader.example(index).astype(np.uint8)) == expected


CHANGES = {
    "format": ({"format": 2}, "/meta.json: format: 2: "),
    "dtype": ({"dtype": "float64"}, "/meta.json: dtype: 'float64': Input should be 'uint8', "),
    "no-shards": ({"splits": {"train": {"shards": []}}}, "/meta.json: splits.train.shards"),
    "unknown-key": ({"colour": "red"}, "/meta.json: colour: Extra inputs are not permitted$"),
    "no-json": (None, "/meta.json: Invalid JSON: "),
    "no-split": ({"splits": {}}, ": splits: 'heldout' is missing; there is "),
    "too-few-tokens": ({}, r": splits.heldout: \d+ tokens hold no example of 100000"),
}


@pytest.mark.parametrize(("change", "named"), CHANGES.values(), ids=CHANGES)
def test_a_data_set_that_cannot_serve_is_named_by_uri_and_field(broken, change, named):
    text = b"{" if change is None else json.dumps({**json.loads(broken.read("meta.json")), **change}).encode()
    broken.write("meta.json", text)
    with pytest.raises(DataError, match=f"{broken.uri}{named}"):
        Reader(broken.uri, "heldout", 100_000)


def test_a_missing_or_short_shard_is_named(broken):
    reader = Reader(broken.uri, "train", LENGTH)
    broken.delete("train/00000.tokens")
    with pytest.raises(DataError, match=r"train/00000.tokens: not found, though meta.json names it"):
        reader.example(0)
    broken.write("train/00001.tokens", b"short")
    with pytest.raises(DataError, match=r"train/00001.tokens: tokens: ends before token"):
        reader.example(1000 // LENGTH + 1)


def test_a_bucket_that_hangs_is_given_up_by_the_reader_before_a_step_gives_its_batch_up(dataset, monkeypatch):
    reader, waited = Reader(dataset, "train", LENGTH), []

    def silent(bucket, path, start, stop):
        waited.append(bucket._timeout)
        raise StoreError(f"{path}: no answer within {bucket._timeout:g} s")

    monkeypatch.setattr(Bucket, "read", silent)
    monkeypatch.setattr(reader_module, "time", SimpleNamespace(sleep=waited.append))
    monkeypatch.setattr(reader_module, "random", SimpleNamespace(uniform=lambda low, high: high))
    with pytest.raises(StoreError, match="no answer within"):
        reader.example(0)
    assert 60 < sum(waited) < DATA_TIMEOUT, "seconds; one that is silent for a minute ends no unit"


def test_the_standard_library_is_written_the_same_each_time(tmp_path, monkeypatch):
    library = tmp_path / "lib"
    for name in ("a.py", "b/c.py", "test/d.py", "site-packages/e.py"):
        (library / name).parent.mkdir(parents=True, exist_ok=True)
        (library / name).write_text(f"# {name}\n" * 20)
    for number in range(60):
        (library / f"m{number}.py").write_text(f"x = {number}\n" * 20)
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(library))
    seen = []
    first = write_stdlib(f"file://{tmp_path}/one", lambda done, total: seen.append((done, total)))
    assert first == write_stdlib(f"file://{tmp_path}/two")
    assert seen[-1] == (62, 62), "tests and foreign packages are left out"
    assert Reader(f"file://{tmp_path}/one", "heldout", 8).examples > 0


@settings(max_examples=60)
@given(
    more=st.integers(0, 600),
    streams=st.integers(1, 8),
    seed=st.integers(0, 2**31 - 1),
    epoch=st.integers(0, 10**6),
)
def test_streams_are_disjoint_within_an_epoch_and_read_every_example(more, streams, seed, epoch):
    drawn, examples = [], streams + more
    for number in range(streams):
        stream = Stream(examples, seed, number, streams)
        start = epoch * stream.per_epoch
        drawn += [stream.index(cursor) for cursor in range(start, start + stream.per_epoch)]
    assert len(drawn) == len(set(drawn)) == examples // streams * streams


@settings(max_examples=60)
@given(
    examples=st.integers(64, 400),
    streams=st.integers(1, 5),
    doublings=st.integers(1, 3),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_joining_stream_repeats_nothing_that_a_running_one_reads_soon(
    examples, streams, doublings, seed, data
):
    finer = streams * 2**doublings
    joining = data.draw(st.integers(streams, finer - 1))
    late = Stream(examples, seed, joining, finer)
    new = {late.index(cursor) for cursor in range(late.per_epoch)}
    for number in range(streams):
        running = Stream(examples, seed, number, streams)
        read = [running.index(cursor) for cursor in range(running.per_epoch)]
        if joining % streams == number:
            assert new <= set(read), "the newcomer takes over a part of this one"
            first = read[: (running.per_epoch + 2**doublings - 1) // 2**doublings]
            assert not new & set(first), "the part that no finer stream takes is read first"
        else:
            assert not new & set(read)


def test_epochs_and_seeds_are_shuffled_differently():
    orders = {
        tuple(permute(index, 50, seed, epoch) for index in range(50))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


@pytest.mark.parametrize(
    ("stream", "streams", "named"),
    [
        (2, 2, "stream 2"),
        (0, 11, "examples: 10 .* 11 streams.* a smaller data.sequenceLength or fewer units"),
    ],
)
def test_impossible_stream_is_refused(stream, streams, named):
    with pytest.raises(ValueError, match=named):
        Stream(10, 0, stream, streams)


@pytest.fixture
def prefetch():
    """Makes a `Prefetch` that ends with the test."""
    with ExitStack() as ends:

        def make(*given, **options):
            made = Prefetch(*given, **options)
            ends.callback(made.close)
            return made

        yield make


def test_batches_come_in_order_and_rows_beyond_the_batch_fill_up(prefetch):
    batches = prefetch(lambda at: np.full(3, at), cursor=10, size=3, rows=(1, 4))
    first, second = batches.take(30), batches.take(30)
    assert first.tokens[:, 0].tolist() == [11, 12, 10]
    assert (first.cursor, second.cursor) == (13, 16)
    assert second.tokens[:, 0].tolist() == [14, 15, 13]


@pytest.mark.parametrize("readers", [1, 3, 16])
def test_batches_come_in_order_however_many_threads_read(prefetch, readers):
    late = threading.Event()

    def example(at):
        if at == 0:
            late.wait(30)  # the first batch is ready last
        elif at >= 8:
            late.set()
        return np.full(3, at)

    late.set() if readers == 1 else late.clear()
    batches = prefetch(example, cursor=0, size=4, rows=(0, 4), readers=readers)
    taken = [batches.take(30) for _ in range(40)]
    assert [batch.cursor for batch in taken] == [4 * number for number in range(1, 41)]
    assert np.concatenate([batch.tokens[:, 0] for batch in taken]).tolist() == list(range(160))


def test_all_threads_read_the_batch_that_is_wanted_next(prefetch):
    together = threading.Barrier(4)

    def example(at):
        if at < 4:
            together.wait(30)
        return np.full(3, at)

    batches = prefetch(example, cursor=0, size=4, rows=(0, 4), readers=4)
    assert batches.take(30).tokens[:, 0].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("rows", "ahead"), [(1, 8), (3, 12), (16, 64)])
def test_no_more_is_read_ahead_than_a_few_batches_or_a_row_for_each_thread(prefetch, rows, ahead, eventually):
    read = []
    batches = prefetch(
        lambda at: read.append(at) or np.full(3, at), cursor=0, size=rows, rows=(0, rows), readers=8
    )
    batches.take(30)
    eventually(lambda: len(read) >= ahead + rows)
    batches.close()
    assert sorted(read) == list(range(ahead + rows))


def test_threads_share_one_reader(prefetch, dataset):
    reader, text = Reader(dataset, "train", LENGTH, cached_blocks=2), text_of("train")
    batches = prefetch(lambda at: reader.example(at % reader.examples), 0, 8, (0, 8), readers=8)
    for number in range(100):
        for row, tokens in enumerate(batches.take(30).tokens):
            start = (number * 8 + row) % reader.examples * LENGTH
            assert bytes(tokens.astype(np.uint8)) == text[start : start + LENGTH + 1]


def test_a_reader_error_is_raised_in_the_loop(prefetch):
    def example(at):
        if at >= 4:
            raise DataError("bucket: gone")
        return np.zeros(3)

    batches = prefetch(example, cursor=0, size=4, rows=(0, 4))
    batches.take(30)
    with pytest.raises(DataError, match="gone"):
        batches.take(30)


def test_missing_batch_times_out_and_close_waits_only_for_the_one_that_is_being_read(eventually):
    entered, release = threading.Event(), threading.Event()

    def example(at):
        entered.set()
        release.wait(60)
        return np.zeros(3)

    batches = Prefetch(example, cursor=0, size=1, rows=(0, 1))
    assert entered.wait(60)
    with pytest.raises(TimeoutError, match="training data"):
        batches.take(0.05)
    closing = threading.Thread(target=batches.close, args=(3600,))
    closing.start()
    release.set()
    closing.join(60)
    assert not closing.is_alive()
    eventually(lambda: not any(thread.name.startswith("prefetch") for thread in threading.enumerate()))

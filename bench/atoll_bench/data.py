"""Measures whether reading keeps up with steps: from files, and from a bucket with delayed answers."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from atoll_bench.slowlink import SlowLink
from atoll_local.bucket import FakeGcs
from atoll_runtime.checkpoint import Bucket
from atoll_runtime.data import Prefetch, Reader, Stream
from atoll_runtime.data.catalogue import META, Catalogue, Split
from atoll_runtime.data.writer import ShardWriter

SHARDS = 4
SHARD_TOKENS = 32_000_000
"""uint16: 256 MB in all, four times the reader's cache."""
VOCABULARY = 50_000
BUCKET = "bench"
PATIENCE = 60.0
"""Seconds for one batch."""
STALL = 0.001
"""A step that waits for longer counts as stalled."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One host's batches."""

    length: int
    batch: int
    step: float
    """Seconds of a step, in which the host is idle otherwise."""
    steps: int


@dataclass(frozen=True, slots=True)
class DataFigure:
    """One store at one latency, read with an empty cache."""

    store: str
    latency: float
    """Seconds added to each answer."""
    readers: int
    length: int
    batch: int
    step: float
    steps: int
    examples_per_second: float
    """Without steps: batches are taken as fast as they come."""
    first: float
    """Seconds until the first batch, which no step hides."""
    wait_p50: float
    """Seconds that steps waited for `take`, without the first one."""
    wait_p99: float
    stalled: float
    """Fraction of the steps that waited for more than a millisecond."""


def measure(setting: Setting, latencies: Sequence[float]) -> Iterator[DataFigure]:
    """Measures files, then the bucket at each latency in seconds.

    Raises:
        ClusterError: the bucket server cannot be started.
        StoreError: it does not answer.
    """
    folder = Path(tempfile.mkdtemp(prefix="atoll-bench-data-"))
    try:
        uri = f"file://{folder}/data"
        write(uri)
        yield figure("file", 0.0, uri, setting)
        with FakeGcs(folder / "gcs", port=0) as server, SlowLink(server.address, server.port) as link:
            near = f"http://127.0.0.1:{link.port}"
            for name, value in server.environment().items():
                os.environ[name] = near if value == server.url else value
            server.create_bucket(BUCKET)
            write(f"gs://{BUCKET}/data")
            for latency in latencies:
                link.latency = latency
                yield figure("gs", latency, f"gs://{BUCKET}/data", setting)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(uri: str) -> None:
    """Writes a data set of random tokens."""
    random, bucket = np.random.default_rng(0), Bucket(uri)
    writer = ShardWriter(bucket, "train", 2, 2 * SHARD_TOKENS)
    for _ in range(SHARDS):
        writer.add(random.integers(0, VOCABULARY, SHARD_TOKENS, np.uint16).astype("<u2").tobytes())
    catalogue = Catalogue(
        dtype="uint16", tokenizer="bytes", vocabulary=VOCABULARY, splits={"train": Split(shards=writer.end())}
    )
    bucket.write(META, catalogue.model_dump_json().encode())


def figure(store: str, latency: float, uri: str, setting: Setting) -> DataFigure:
    """Raises `StoreError`."""
    free, readers = _waits(uri, setting, 0.0)
    held, _ = _waits(uri, setting, setting.step)
    return DataFigure(
        store=store,
        latency=latency,
        readers=readers,
        length=setting.length,
        batch=setting.batch,
        step=setting.step,
        steps=setting.steps,
        examples_per_second=setting.steps * setting.batch / sum(free),
        first=held[0],
        wait_p50=float(np.percentile(held[1:], 50)),
        wait_p99=float(np.percentile(held[1:], 99)),
        stalled=float(np.mean(np.array(held[1:]) > STALL)),
    )


def _waits(uri: str, setting: Setting, step: float) -> tuple[list[float], int]:
    """Seconds of each `take`, with steps of `step` seconds between them, and the reader's threads."""
    reader = Reader(uri, "train", setting.length)
    stream = Stream(reader.examples, 0, 0, 1)
    batches = Prefetch(
        lambda at: reader.example(stream.index(at)), 0, setting.batch, (0, setting.batch), reader.readers
    )
    waits = []
    try:
        for _ in range(setting.steps):
            started = time.perf_counter()
            batches.take(PATIENCE)
            waits.append(time.perf_counter() - started)
            time.sleep(step)
    finally:
        batches.close()
    return waits, reader.readers

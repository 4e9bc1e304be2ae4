"""Compares what a starting shard and a seeded host read from the bucket with one copy of the same bytes.

A checkpoint of 8 shards is saved on a real bucket server. One process reads once through a proxy that counts the bytes.
It reads as a shard that has lost its journal, or as a host of a unit of several hosts, which has saved its moments.
Another process does the same without the proxy, in turns with a copy of one object as long as its part.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from unittest.mock import patch

import numpy as np

from atoll_bench.merge import layout_of, model_of
from atoll_bench.slowlink import SlowLink
from atoll_bench.workers import workers
from atoll_local.bucket import FakeGcs
from atoll_runtime.checkpoint import Bucket, GlobalStore, Part, Region, Regions
from atoll_runtime.checkpoint.units import FragmentPart, UnitStore
from atoll_runtime.model import along, describe
from atoll_runtime.protocol.fragments import Layout, cut, part_bounds
from atoll_runtime.protocol.norms import EACH, MERGES
from atoll_runtime.simulate.blank import unit_contract
from atoll_runtime.syncer.recovery import owned, slices
from atoll_runtime.syncer.state import State

SHARDS = 8
FRAGMENTS = 24
"""At most; a small model has fewer pieces."""
STEP = 100
UNIT, ADAMW = "unit", "adamw(mu, nu)"
URI = "gs://bench/run"
COPIED = "copied"
"""Folder of the objects that are copied."""
WHAT = ("shard", "host")
T = TypeVar("T")


@dataclass(frozen=True)
class RestoreFigure:
    """One line of `atoll bench restore --json`."""

    what: str
    bytes_ratio: float
    """Bytes received, over those of its part in float32. A shard's part is Θ and momentum, a host's is its share of Θ
    and of the moments."""
    seconds_ratio: float
    """Seconds of a restore over those of a copy of as many bytes right after it; the median over pairs."""


def measure(parameters: int, hosts: int, repeat: int) -> Iterator[RestoreFigure]:
    """Measures a shard, and a host of a unit of `hosts`. Raises what `merge.layout_of` raises, `CommandError` if a
    process was killed, and `ClusterError` or `StoreError` if the bucket server cannot be used."""
    model = model_of(parameters)
    layout = layout_of(parameters, min(FRAGMENTS, len(cut(describe(model))))).split(SHARDS)
    split = along(model)
    largest = max((layout.shard(shard) for shard in range(SHARDS)), key=lambda shard: shard.size)
    of_host = {name: _share(shape, split.get(name), hosts) for name, shape in layout.shapes.items()}
    own: dict[str, Regions] = {"shard": owned(largest), "host": of_host}
    theta = sum(
        math.prod(map(len, region)) * math.prod(layout.shapes[name][len(region) :])
        for name, region in of_host.items()
    )
    parts = {"shard": 8 * largest.size, "host": 4 * theta + 8 * layout.size // hosts}
    with (
        tempfile.TemporaryDirectory(prefix="atoll-bench-restore-") as folder,
        FakeGcs(Path(folder) / "gcs", port=0) as server,
        SlowLink(server.address, server.port) as link,
    ):
        direct = server.environment()
        near = f"http://127.0.0.1:{link.port}"
        counted = {name: near if value == server.url else value for name, value in direct.items()}
        server.create_bucket("bench")
        _in_process(direct, save, layout, split, hosts, parts)
        for what in WHAT:
            before = link.received
            _in_process(counted, restore, what, own[what], layout, hosts)
            received = link.received - before
            ratios = _in_process(direct, seconds_ratios, what, own[what], layout, hosts, parts[what], repeat)
            yield RestoreFigure(what, received / parts[what], float(np.median(ratios)))


def _share(shape: tuple[int, ...], axis: int | None, hosts: int) -> Region:
    """A host's part of a tensor, or the whole of a tensor that is not split."""
    if axis is None or shape[axis] % hosts:
        return ()
    return (*map(range, shape[:axis]), range(shape[axis] // hosts))


def save(layout: Layout, split: Mapping[str, int], hosts: int, parts: Mapping[str, int]) -> None:
    """Saves a whole checkpoint of random numbers, with the norms that a shard of eight units remembers, a unit's
    moments, and objects as long as each part."""
    store, random = GlobalStore(URI, split), np.random.default_rng(0)
    theta, momentum = (
        {name: random.standard_normal(shape, np.float32) for name, shape in layout.shapes.items()}
        for _ in range(2)
    )
    for shard in range(SHARDS):
        own = layout.shard(shard)
        state = State.from_tensors(own, "bf16", theta, momentum, [STEP] * len(own.fragments), "")
        tensors = slices(own, state.fragments)
        record = {"norms": random.random((FRAGMENTS, MERGES, EACH)).tolist()}
        meta = {"run_uid": "bench", "machine": record}
        store.save_part(Part(STEP, shard, SHARDS, tensors, state.versions, meta))
    store.complete(STEP, SHARDS, {"run_uid": "bench"})
    for host in range(hosts):
        bounds = {
            n: part_bounds(each.size, hosts)[host] for n, each in enumerate(layout.fragments) if each.size
        }
        held = {n: random.standard_normal(stop - start, np.float32) for n, (start, stop) in bounds.items()}
        moments = {n: FragmentPart(*bounds[n], STEP, each, each) for n, each in held.items()}
        unit = unit_contract(UNIT, host=host, hosts=hosts)
        UnitStore(URI, "bench", ADAMW).save(unit, layout, STEP, 1, 1, moments)
    for what, size in parts.items():
        Bucket(URI).write(f"{COPIED}/{what}", random.bytes(size))


def restore(what: str, own: Regions, layout: Layout, hosts: int) -> None:
    """Reads as `syncer.recovery` and `learner.seed` do, the latter on a host that host 0 has told the save."""
    cut, skipped = GlobalStore(URI).newest(momentum=what == "shard", own=own)
    assert cut is not None and not skipped, skipped
    if what == "host":
        save, skipped = UnitStore(URI, "bench", ADAMW).newest(
            UNIT, layout, cuts={STEP: hosts}, share=(hosts - 1, hosts)
        )
        assert save is not None and not skipped, skipped


def seconds_ratios(
    what: str, own: Regions, layout: Layout, hosts: int, size: int, repeat: int
) -> list[float]:
    """Returns the seconds of `repeat` restores, each divided by those of the copy after it. One pair before them is not
    counted, because it imports modules."""
    bucket = Bucket(URI)
    pairs = [
        (_seconds(restore, what, own, layout, hosts), _seconds(bucket.read, f"{COPIED}/{what}", 0, size))
        for _ in range(repeat + 1)
    ]
    return [one / other for one, other in pairs[1:]]


def _seconds(work: Callable[..., object], *arguments: object) -> float:
    started = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - started


def _in_process(environment: Mapping[str, str], work: Callable[..., T], *arguments: object) -> T:
    """Runs `work` in a new process, because clients of the bucket read its address only once. Raises `CommandError` if
    it was killed."""
    own = patch.dict(os.environ, {"JAX_PLATFORMS": "cpu", **environment})
    with own, workers(1, f"{work.__name__}: its process was killed, out of memory perhaps") as pool:
        return pool.submit(work, *arguments).result()

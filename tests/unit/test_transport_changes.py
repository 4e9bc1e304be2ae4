"""Versions sent as changes in four bits: both ends hold the same bits, and errors do not accumulate."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.merge.rda import Result
from atoll_runtime.protocol.fragments import TensorInfo, build_layout, part_bounds
from atoll_runtime.syncer.state import ASKED_MERGES, State
from atoll_runtime.transport import blocks, changes, codecs
from atoll_runtime.transport.changes import Holdings
from atoll_runtime.transport.chunks import filled
from atoll_runtime.transport.messages import WHOLE, FetchHead, FetchRequest
from atoll_runtime.transport.transport import TransportError


class Shard:
    """One fragment's versions, and what a host fetches of it."""

    def __init__(self, size: int, codec: str = "int4", seed: int = 0, series: str = "life") -> None:
        self.rng = np.random.default_rng(seed)
        layout = build_layout([TensorInfo("w", (size,), stacked=False, embedding=False)], 1)
        theta = {"w": self.rng.standard_normal(size, np.float32)}
        self.state = State.from_tensors(layout, codec, theta, None, [0], series)

    def merge(self, far: float = 0.1) -> None:
        """Moves each element by about `far`; the default is a tenth of its own size."""
        old = self.state.fragments[0]
        theta = (old.theta + far * self.rng.standard_normal(old.theta.size)).astype(np.float32)
        wire = codecs.encode(theta, self.state.codec, theta.size)
        merged = Result(theta, old.momentum, wire)
        self.state.fragments[0] = old.next(old.version + 1, merged, self.state.codec)

    def serve(
        self, host: Holdings, span: tuple[int, int], codec: str = ""
    ) -> tuple[FetchHead, memoryview, bool]:
        """The result of a fetch in `codec`, by default the run's, in the form that `Holdings.take` takes."""
        held, codec = host.of(0), codec or self.state.codec
        wanted = host.wanted(0, codec)
        head, body = self.state.fetch(FetchRequest("a", 1, 0, 0, *span, wanted, held.version, held.series))
        return head, filled(body, head.size), codec == "int4"

    def wire(self, span: tuple[int, int]) -> bytes:
        """What a host that holds nothing and must have the shard's bits gets."""
        head, body, _ = self.serve(Holdings(self.state.codec, [span], exact=True), span)
        assert head.base == WHOLE
        return bytes(body)


@pytest.mark.parametrize("exact", [True, False])
@settings(max_examples=60)
@given(
    size=st.integers(1, 700),
    devices=st.integers(1, 9),
    fetched=st.lists(st.sets(st.integers(0, 8)), min_size=1, max_size=8),
    seed=st.integers(0, 99),
)
def test_every_host_holds_the_bits_that_the_syncer_thinks_it_holds(
    size, devices, fetched, seed, exact
) -> None:
    """Whichever merges it misses, until it asks for a version in int8. A host does not that must have these bits."""
    shard = Shard(size, seed=seed)
    spans = part_bounds(size, devices)
    hosts = [Holdings("int4", [span], exact) for span in spans]
    for fetching in fetched:
        shard.merge()
        for number, (host, span) in enumerate(zip(hosts, spans, strict=True)):
            before = host.of(0).version
            if number in fetching:
                if not exact and host.wanted(0, "int4") == "int8":
                    return
                head, body, changes = shard.serve(host, span)
                part = host.take(head, body, changes)
                assert part.tobytes() == shard.wire(span)
                assert head.base == (before if before == head.version - 1 and before > 0 else WHOLE)


def test_after_a_thousand_versions_the_learners_are_as_near_as_after_the_first() -> None:
    shard = Shard(64 * 40)

    def miss() -> float:
        newest = shard.state.fragments[0]
        held = codecs.view(newest.wire, "int4").astype(np.float32)
        return float(np.linalg.norm(newest.theta - held))

    shard.merge()
    first = miss()
    every = [first]
    for _ in range(1000):
        shard.merge()
        every.append(miss())
    assert max(every) < 1.3 * first
    moved = 0.1 * np.sqrt(shard.state.fragments[0].theta.size)
    assert max(every) < 0.15 * moved, "of what a merge moves"


def test_who_holds_a_version_of_another_life_of_the_shard_gets_the_next_one_whole() -> None:
    shard, host = Shard(300), Holdings("int4", [(0, 300)])
    again = Shard(300, seed=1, series="another life")
    for each in (shard, again):
        each.merge()
        each.merge()
    host.take(*shard.serve(host, (0, 300)))
    again.merge()
    head, body, kept = again.serve(host, (0, 300))
    assert (host.of(0).version, head.version, head.base) == (2, 3, WHOLE)
    assert host.take(head, body, kept).tobytes() == again.wire((0, 300))


def test_a_body_that_does_not_fit_what_is_held_is_refused_and_leaves_it_as_it_was() -> None:
    shard, host = Shard(300), Holdings("int4", [(0, 320)], exact=True)
    host.take(*shard.serve(host, (0, 320)))
    shard.merge()
    head, body, kept = shard.serve(host, (0, 320))
    with pytest.raises(TransportError, match=r"169 bytes of int4 came for \[0, 320\)"):
        host.take(head, body[:-1], kept)
    with pytest.raises(TransportError, match="a change of version 6 came, but 0 is held"):
        host.take(FetchHead(0, 7, len(body), "int4", 6, "life"), body, kept)
    with pytest.raises(TransportError, match="300 bytes of bf16 came"):
        host.take(FetchHead(0, 7, 300, "bf16"), memoryview(bytes(300)), kept)
    assert host.take(head, body, kept).tobytes() == shard.wire((0, 320))


@pytest.mark.parametrize("run", ["float32", "bf16"])
def test_a_host_that_narrows_its_codec_gets_changes_from_then_on_and_others_notice_nothing(run) -> None:
    shard, narrow, wide = Shard(320, run), Holdings(run, [(0, 320)]), Holdings(run, [(0, 320)])
    heads = []
    for _ in range(5):
        shard.merge()
        theta = shard.state.fragments[0].theta
        head, body, kept = shard.serve(narrow, (0, 320), "int4")
        part = narrow.take(head, body, kept)
        assert part.dtype == codecs.DTYPES[run]
        assert np.abs(part.astype(np.float32) - theta).max() < 0.1, "within what a merge moves"
        heads.append((head.codec, head.base))
        whole = wide.take(*shard.serve(wide, (0, 320)))
        assert whole.tobytes() == bytes(codecs.encode(theta, run, 320)) and wide.of(0).version == WHOLE
    first = "bf16" if run == "bf16" else "float32"
    assert heads == [(first, WHOLE), ("int8", WHOLE), ("int4", 2), ("int4", 3), ("int4", 4)]


@pytest.mark.parametrize("missed", [0, 1])
def test_who_joins_the_changes_later_or_misses_one_stays_as_near_as_int8_has_brought_it(missed: int) -> None:
    shard, first, second = Shard(640, "bf16"), Holdings("bf16", [(0, 640)]), Holdings("bf16", [(0, 640)])
    apart = []
    for merges in range(200):
        shard.merge(0.02)
        mine = first.take(*shard.serve(first, (0, 640), "int4")).astype(np.float32)
        if merges > 2 and not (missed and merges == 20):
            head, body, kept = shard.serve(second, (0, 640), "int4")
            other = second.take(head, body, kept).astype(np.float32)
            apart.append((head.codec, float(np.linalg.norm(other - mine) / np.linalg.norm(mine))))
    assert [codec for codec, _ in apart].count("int8") == 2 + missed, "at first, and after so many changes"
    assert max(miss for _, miss in apart) < 0.011, "two whole versions in int8 are 0.008 apart"


def test_a_host_that_missed_a_version_and_got_w_asks_for_int8_the_next_time() -> None:
    """With bfloat16, a link that carries the changes alone would miss every next version too. Nobody has asked for int8
    for long."""
    shard, host, came = Shard(320), Holdings("int4", [(0, 320)]), []
    for merges in range(ASKED_MERGES + 8):
        shard.merge()
        if merges - ASKED_MERGES not in (2, 4, 6):
            head, body, kept = shard.serve(host, (0, 320))
            host.take(head, body, kept)
            came.append(head.codec)
    assert came[-5:] == ["int4", "int4", "bf16", "bf16", "int8"]


def test_in_a_run_of_int4_whoever_begins_later_gets_int8() -> None:
    """On a link that carries little more than changes, bfloat16 would take until the next versions are made."""
    shard, spans = Shard(320), [(0, 320)]
    came = []
    for _ in range(3):
        shard.merge()
        host = Holdings("int4", spans)
        head, body, kept = shard.serve(host, spans[0])
        host.take(head, body, kept)
        came.append(head.codec)
    assert came == ["bf16", "int8", "int8"]


@pytest.mark.parametrize("run", ["bf16", "int8"])
def test_int8_is_made_from_the_next_merge_on_and_no_longer_than_it_is_fetched(run) -> None:
    shard, host = Shard(320, run), Holdings(run, [(0, 320)])
    found = []
    for _ in range(2):
        shard.merge()
        head, body, kept = shard.serve(host, (0, 320), "int8")
        found.append(head.codec)
        part = host.take(head, body, kept).astype(np.float32)
        assert np.abs(part - shard.state.fragments[0].theta).max() < 0.03
    assert found == ["bf16", "int8"] and host.of(0).version == WHOLE
    for _ in range(ASKED_MERGES + 1):
        shard.merge()
    assert shard.state.fragments[0].int8 is None


@pytest.mark.parametrize("run", ["float32", "bf16", "int4"])
def test_a_cut_keeps_theta_and_momentum_alone_and_not_what_hosts_fetch(run) -> None:
    shard = Shard(300, codec=run)
    for codec in ("int8", "int4"):
        shard.state.fragments[0].body(0, 300, codec, run, WHOLE)
    shard.merge()
    newest = shard.state.fragments[0]
    kept = newest.bare
    assert (kept.version, kept.theta is newest.theta, kept.momentum is newest.momentum) == (1, True, True)
    assert (kept.wire.nbytes, kept.held, kept.change, kept.int8) == (0, None, None, None)
    assert newest.held is not None and newest.change is not None


def test_threads_and_chunks_change_no_bit() -> None:
    rng = np.random.default_rng(0)
    size = 2 * blocks.CHUNK + 100
    theta = rng.standard_normal(size, np.float32)
    held = codecs.encode(theta + 0.01 * rng.standard_normal(size, np.float32), "int4", size)
    alone, shared = (memoryview(bytearray(2 * size)) for _ in range(2))
    body = changes.advance(held, theta, alone)
    with ThreadPoolExecutor(3) as pool:
        assert changes.advance(held, theta, shared, pool) == body
        assert changes.encoded(theta, "int8", pool) == blocks.encode(theta, "int8")
    assert alone == shared
    assert bytes(body) == bytes(blocks.encode(theta - codecs.view(held, "int4").astype(np.float32), "int4"))


def test_a_fragment_without_elements_has_an_empty_change() -> None:
    nothing = np.zeros(0, np.float32)
    assert len(changes.advance(memoryview(b""), nothing, memoryview(bytearray()))) == 0

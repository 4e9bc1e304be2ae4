"""A body in chunks gives the same bytes in whatever order they come and whatever breaks on the way."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.transport import chunks
from atoll_runtime.transport.chunks import BLOCK, MOST_CHUNK, Assembly, Sending
from atoll_runtime.transport.wire import WireError

STREAMS = 3
BYTES = np.random.default_rng(0).bytes(40 * BLOCK)
sizes = st.integers(1, 39 * BLOCK) | st.integers(1, 39).map(lambda blocks: blocks * BLOCK)


def receive(assembly: Assembly, start: int, data: memoryview, torn: bool = False) -> None:
    """Receives a chunk, or half of it, after which its connection breaks."""
    with assembly.chunk(start, len(data)) as memory:
        if torn:
            memory[: len(data) // 2] = data[: len(data) // 2]
            raise ConnectionResetError
        memory[:] = data


@given(
    size=sizes, inside=st.integers(0, 40 * BLOCK), chunk=st.integers(1, 3 * BLOCK), seed=st.integers(0, 999)
)
def test_a_body_over_several_connections_that_break_comes_whole_and_no_held_chunk_is_sent_again(
    size: int, inside: int, chunk: int, seed: int
) -> None:
    dice, body = random.Random(seed), memoryview(BYTES)[: min(inside, size)]
    sending, assembly, sent = Sending(body, size, chunk), Assembly(size), dict[int, int]()
    shares = [sending.attached(stream, assembly.held()) for stream in range(STREAMS)]
    breaks = 12
    while not assembly.whole:
        stream = dice.randrange(STREAMS)
        span = sending.next(shares[stream])
        torn = breaks > 0 and dice.random() < 0.5
        if span is not None:
            with contextlib.suppress(ConnectionResetError):
                receive(assembly, span[0], sending.data(span), torn)
                sent[span[0]] = sent.get(span[0], 0) + 1
        if torn or span is None:
            breaks = max(breaks - 1, 0)
            shares[stream] = sending.attached(stream, assembly.held())
    assert bytes(assembly.body) == bytes(body).ljust(size, b"\0")
    assert set(sent.values()) == {1} and assembly.filled == size


def test_a_chunk_that_comes_again_changes_nothing() -> None:
    assembly = Assembly(2 * BLOCK)
    receive(assembly, 0, memoryview(BYTES)[:BLOCK])
    for size in (BLOCK, 2 * BLOCK):
        receive(assembly, 0, memoryview(bytes(size)))
    assert assembly.body[:BLOCK] == BYTES[:BLOCK] and assembly.filled == BLOCK


def test_a_chunk_waits_until_the_connection_that_sent_it_before_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, assembly = memoryview(BYTES)[: 2 * BLOCK], Assembly(2 * BLOCK)
    with ThreadPoolExecutor() as threads:
        with contextlib.suppress(ConnectionResetError), assembly.chunk(0, BLOCK):
            with monkeypatch.context() as patch, pytest.raises(WireError, match="another connection"):
                patch.setattr(chunks, "WAIT_SECONDS", 0.01)
                receive(assembly, 0, data)
            waiting = threads.submit(receive, assembly, 0, data)
            raise ConnectionResetError
        waiting.result(timeout=30)
    assert assembly.body == data


@pytest.mark.parametrize(
    ("start", "size"),
    [(1, BLOCK), (0, 0), (0, BLOCK - 1), (0, 6 * BLOCK), (5 * BLOCK, BLOCK), (0, MOST_CHUNK + BLOCK)],
    ids=["between-blocks", "empty", "half-a-block", "too-long", "behind-the-end", "too-large"],
)
def test_a_chunk_without_a_place_in_the_body_is_refused(start: int, size: int) -> None:
    with pytest.raises(WireError, match="of 327681 bytes"):
        receive(Assembly(5 * BLOCK + 1), start, memoryview(bytes(size)))


def test_a_list_of_blocks_of_another_body_is_refused() -> None:
    with pytest.raises(WireError, match="held: 2 bytes for 3 blocks"):
        Sending(memoryview(BYTES)[: 3 * BLOCK], 3 * BLOCK, BLOCK).attached(0, b"\0\0")

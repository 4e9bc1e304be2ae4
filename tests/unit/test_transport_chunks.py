"""A body in chunks gives the same bytes in whatever order they come and whatever breaks on the way."""

from __future__ import annotations

import random
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.transport.chunks import BLOCK, MOST_CHUNK, Assembly, Claim, Sending
from atoll_runtime.transport.wire import WireError

STREAMS = 3
BYTES = np.random.default_rng(0).bytes(40 * BLOCK)
sizes = st.integers(1, 39 * BLOCK) | st.integers(1, 39).map(lambda blocks: blocks * BLOCK)


def fill(claim: Claim, data: memoryview) -> None:
    """Fills a chunk with these bytes, after which the connection ends."""
    rest = data

    def read(view: memoryview) -> int:
        nonlocal rest
        count = min(len(view), len(rest), BLOCK // 3)
        view[:count], rest = rest[:count], rest[count:]
        return count

    claim.fill(read)


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
        fate = dice.choice(["whole", "whole", "torn", "lost"]) if breaks else "whole"
        if span is not None:
            data = sending.data(span)
            claim = assembly.claim(span[0], len(data), lambda: None)
            if fate != "whole":
                with pytest.raises(WireError, match="has closed"):
                    fill(claim, data[: len(data) // 2])
            else:
                fill(claim, data)
                assembly.hold(claim)
                sent[span[0]] = sent.get(span[0], 0) + 1
            if fate != "lost":  # if the shard has not noticed the break, its claim stays
                assembly.drop(claim)
        if fate != "whole" or span is None:
            breaks = max(breaks - 1, 0)
            shares[stream] = sending.attached(stream, assembly.held())
    assert bytes(assembly.body) == bytes(body).ljust(size, b"\0")
    assert set(sent.values()) == {1} and assembly.filled == size


def test_a_chunk_that_comes_twice_changes_nothing_and_one_that_is_sent_anew_is_taken_from_there() -> None:
    data = memoryview(BYTES)[:BLOCK]
    assembly = Assembly(2 * BLOCK)
    first = assembly.claim(0, BLOCK, lambda: None)
    second = assembly.claim(0, BLOCK, lambda: None)
    with pytest.raises(WireError, match="another connection"):
        fill(first, data)
    fill(second, data)
    with pytest.raises(WireError, match="another connection"):
        assembly.hold(first)
    assembly.hold(second)
    with pytest.raises(WireError, match="another connection"):
        fill(second, data)
    third = assembly.claim(0, 2 * BLOCK, lambda: None)
    fill(third, memoryview(bytes(2 * BLOCK)))
    assembly.hold(third)
    assert assembly.body[:BLOCK] == data and assembly.filled == BLOCK


def test_a_chunk_that_is_sent_anew_breaks_the_connection_that_waits_for_the_rest_of_it() -> None:
    data, assembly = memoryview(BYTES)[:BLOCK], Assembly(BLOCK)
    old, new = socket.socketpair()
    with old, new, ThreadPoolExecutor() as threads:
        first = assembly.claim(0, BLOCK, lambda: old.shutdown(socket.SHUT_RDWR))
        new.send(b"1234")
        waits = threads.submit(first.fill, old.recv_into)
        fill(assembly.claim(0, BLOCK, lambda: None), data)
        with pytest.raises(WireError):
            waits.result(timeout=30)
    assert assembly.body == data


@pytest.mark.parametrize(
    ("start", "size"),
    [(1, BLOCK), (0, 0), (0, BLOCK - 1), (0, 6 * BLOCK), (5 * BLOCK, BLOCK), (0, MOST_CHUNK + BLOCK)],
    ids=["between-blocks", "empty", "half-a-block", "too-long", "behind-the-end", "too-large"],
)
def test_a_chunk_without_a_place_in_the_body_is_refused(start: int, size: int) -> None:
    with pytest.raises(WireError, match="of 327681 bytes"):
        Assembly(5 * BLOCK + 1).claim(start, size, lambda: None)


def test_a_list_of_blocks_of_another_body_is_refused() -> None:
    with pytest.raises(WireError, match="held: 2 bytes for 3 blocks"):
        Sending(memoryview(BYTES)[: 3 * BLOCK], 3 * BLOCK, BLOCK).attached(0, b"\0\0")

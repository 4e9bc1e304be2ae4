"""Outer gradients in four bits: how far they miss, what they weigh, and what is never lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll_runtime.merge.gradients import Gradient, scan
from atoll_runtime.merge.rda import merge_step
from atoll_runtime.payloads import HostPart
from atoll_runtime.protocol.fragments import Fragment, Piece
from atoll_runtime.transport import codecs, int4

FINITE = st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False)


def back(values: np.ndarray) -> np.ndarray:
    return int4.decode(int4.encode(values), values.size)


@given(arrays(np.float32, st.integers(0, 300), elements=FINITE))
def test_no_element_misses_by_more_than_half_a_step_of_its_block(values) -> None:
    found = back(values)
    assert found.shape == values.shape and found.dtype == np.float32
    for start in range(0, values.size, int4.BLOCK):
        block = slice(start, start + int4.BLOCK)
        # Half a step, and what rounding the scale to eight bits moves the largest element by.
        bound = np.abs(values[block]).max() / int4.LEVELS * (0.5 + int4.LEVELS / 256) + 1e-37
        assert np.abs(found[block] - values[block]).max() <= bound


@given(arrays(np.float32, st.integers(1, 200), elements=FINITE))
def test_what_has_been_through_once_is_not_changed_again(values) -> None:
    once = back(values)
    blocks = np.array_split(once, range(int4.BLOCK, once.size, int4.BLOCK))
    top = [np.abs(block).max() for block in blocks]
    again = back(once)
    for block, other, most in zip(
        blocks, np.array_split(again, range(int4.BLOCK, once.size, int4.BLOCK)), top, strict=True
    ):
        np.testing.assert_allclose(other, block, atol=most / 128)


def test_normal_values_miss_by_a_tenth_of_their_length() -> None:
    values = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    miss = np.linalg.norm(back(values) - values) / np.linalg.norm(values)
    assert 0.08 < miss < 0.11


def test_signs_zeros_and_the_largest_of_a_block_survive() -> None:
    values = np.zeros(130, np.float32)
    values[[0, 64, 129]] = 7.0, -14.0, 1e-30
    np.testing.assert_allclose(back(values), values, rtol=1 / 128)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_still_seen(bad) -> None:
    values = np.ones(100, np.float32)
    values[70] = bad
    assert not np.isfinite(back(values)).all()
    assert np.isfinite(back(values)[:64]).all()


@pytest.mark.parametrize("elements", [1, 63, 64, 65, int4.CHUNK - 1, int4.CHUNK + 1])
def test_a_body_has_four_and_a_quarter_bits_an_element_and_an_open_block_is_filled(elements) -> None:
    values = np.random.default_rng(1).standard_normal(elements, np.float32)
    body = codecs.pack(values.astype(codecs.DTYPES["int4"]), "int4")
    assert body.nbytes == codecs.pushed_size(elements, "int4") == -(-elements // 64) * 34
    assert np.abs(back(values) - values).max() < 0.5


def test_parts_are_taken_apart_and_merged_as_bf16() -> None:
    piece = Piece("w", None, (200,), 200, embedding=False)
    fragment = Fragment(0, (piece,), 200, (0,))
    rng = np.random.default_rng(2)
    theta = rng.standard_normal(200, np.float32)
    deltas = [rng.standard_normal(200, np.float32) for _ in range(2)]
    inputs = []
    for delta in deltas:
        parts = []
        for start, stop in ((0, 120), (120, 200)):
            body = codecs.pack(delta[start:stop].astype(codecs.DTYPES["int4"]), "int4")
            held = codecs.unpack(body, "int4", stop - start)
            parts.append(HostPart(start, held, scan(fragment, held, "int4", start)))
        inputs.append(Gradient(1.0, tuple(parts)))
    found = merge_step(
        fragment,
        inputs,
        theta,
        np.zeros_like(theta),
        codec="int4",
        rule="Mean",
        learning_rate=1.0,
        outer_momentum=0.0,
    )
    exact = theta - (deltas[0] + deltas[1]) / 2
    assert np.linalg.norm(found.theta - exact) < 0.15 * np.linalg.norm(exact - theta)
    assert len(found.wire) == 2 * 200

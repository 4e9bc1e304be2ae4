"""Vectors in four and eight bits: their errors, their sizes, and what is never lost."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.protocol.fragments import BLOCK
from atoll_runtime.transport import blocks, codecs

CODECS = ("int4", "int8")
FINITE = st.floats(-(2.0**99), 2.0**99, width=32, allow_subnormal=False)


def back(values: np.ndarray, codec: str) -> np.ndarray:
    return blocks.decode(blocks.encode(values, codec), codec, values.size)


@pytest.mark.parametrize("codec", CODECS)
@given(values=arrays(np.float32, st.integers(0, 300), elements=FINITE))
@example(values=np.float32([1.4e-36]))  # its scale is no normal number, so the block is zero
def test_no_element_misses_by_more_than_half_a_step_of_its_block(codec, values) -> None:
    found, levels = back(values, codec), blocks.LEVELS[codec]
    assert found.shape == values.shape and found.dtype == np.float32
    for start in range(0, values.size, BLOCK):
        block = slice(start, start + BLOCK)
        # Half a step, and the change of the largest element by rounding the scale to eight bits.
        bound = np.abs(values[block]).max() / levels * (0.5 + levels / 256) + levels * blocks.TINY
        assert np.abs(found[block] - values[block]).max() <= bound


@pytest.mark.parametrize(("codec", "least", "most"), [("int4", 0.08, 0.11), ("int8", 0.004, 0.007)])
def test_normal_values_miss_by_a_tenth_of_their_length_or_half_a_hundredth(codec, least, most) -> None:
    values = np.random.default_rng(0).standard_normal(1 << 18, np.float32)
    miss = np.linalg.norm(back(values, codec) - values) / np.linalg.norm(values)
    assert least < miss < most


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_still_seen(codec, bad) -> None:
    values = np.ones(100, np.float32)
    values[70] = bad
    assert not np.isfinite(back(values, codec)).all()
    assert np.isfinite(back(values, codec)[:64]).all()


@pytest.mark.parametrize(("codec", "width"), [("int4", 34), ("int8", 66)])
@pytest.mark.parametrize("elements", [1, 63, 64, 65, blocks.CHUNK - 1, blocks.CHUNK + 1])
def test_a_block_has_a_scale_and_its_elements_and_an_open_one_is_filled(codec, width, elements) -> None:
    values = np.random.default_rng(1).standard_normal(elements, np.float32)
    body = codecs.pack(values, codec)
    assert body.nbytes == codecs.size(elements, codec) == -(-elements // BLOCK) * width
    assert width * 8 / BLOCK == BITS[codec]
    assert np.abs(back(values, codec) - values).max() < 0.5


@pytest.mark.parametrize("codec", CODECS)
def test_a_part_that_starts_and_stops_with_a_block_is_a_piece_of_the_whole_body(codec) -> None:
    values = np.random.default_rng(0).standard_normal(500, np.float32)
    part = blocks.encode(values, codec)[codecs.size(128, codec) : codecs.size(320, codec)]
    assert part == blocks.encode(values[128:320], codec)


@pytest.mark.parametrize("run", ["float32", "bf16", "int4"])
@pytest.mark.parametrize("codec", ["float32", "bf16", "int8", "int4"])
def test_what_is_sent_in_any_codec_comes_to_be_in_the_dtype_of_the_run(codec, run) -> None:
    values = np.random.default_rng(0).standard_normal(100, np.float32)
    held = codecs.view(codecs.unpack(codecs.pack(values, codec), codec, 100, run), run)
    assert held.dtype == codecs.DTYPES[run]
    assert np.abs(held.astype(np.float32) - values).max() < (0.3 if codec == "int4" else 0.03)

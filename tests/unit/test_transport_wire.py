"""Codecs and messages: decoding gives the same values, and damage is noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import Announce
from atoll_runtime.transport.wire import WireError, decode, encode

floats = st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=50)


@given(floats, st.integers(0, 5), st.sampled_from(["bf16", "float32"]))
def test_a_fragment_comes_back_as_its_codec_rounds_it(values: list[float], more: int, codec: str) -> None:
    source = np.array(values, np.float32)
    with np.errstate(over="ignore"):
        wire = codecs.encode(source, codec, source.size + more)
        expected = source.astype(codecs.DTYPES[codec]).astype(np.float32)
    back = codecs.view(wire, codec).astype(np.float32)[: source.size]
    assert wire.nbytes == (source.size + more) * codecs.DTYPES[codec].itemsize
    assert np.array_equal(back, expected)


@pytest.mark.parametrize("data", [b"", b"\x80", b"junk", encode(Announce(1, 2, True))[:-1]])
def test_other_bytes_are_not_a_message(data: bytes) -> None:
    with pytest.raises(WireError, match="not a message of protocol"):
        decode(data)

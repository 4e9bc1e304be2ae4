"""The merge: radial-directional averaging, Nesterov, the wire, threads, hosts' parts, and the memory they use."""

from __future__ import annotations

import math
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.contract import Codec, MergeRule
from atoll_runtime.merge.buffers import Buffers
from atoll_runtime.merge.gradients import Gradient, scan
from atoll_runtime.merge.rda import RANGE, SCRATCH, SCRATCH_BYTES, Result, merge_step, warm
from atoll_runtime.payloads import HostPart, MergeError
from atoll_runtime.protocol.fragments import Fragment, TensorInfo, build_layout
from atoll_runtime.transport import codecs

Vector = np.ndarray[Any, np.dtype[np.float32]]

CODECS: tuple[Codec, ...] = ("bf16", "float32")
WEIGHTS = st.lists(st.floats(0.1, 1e3), min_size=1, max_size=9)


def fragment_of(*sizes: int, embedding: bool = False) -> Fragment:
    tensors = [TensorInfo(f"t{i}", (n,), stacked=False, embedding=embedding) for i, n in enumerate(sizes)]
    return build_layout(tensors, 1).fragments[0]


ONE = fragment_of(30)
THREE = fragment_of(301, 700, 4099)
TABLE = fragment_of(30, embedding=True)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> Iterator[None]:
    for codec in CODECS:
        warm(codec)
    yield


def vectors(count: int, size: int, seed: int = 0) -> list[Vector]:
    return list(np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32))


def rounded(vector: Vector, codec: Codec) -> Vector:
    """The vector after it was encoded for the wire and decoded."""
    return codecs.view(codecs.encode(vector, codec, vector.size), codec).astype(np.float32)


def gradient(
    fragment: Fragment, weight: float, delta: Vector, codec: Codec = "float32", hosts: int = 1
) -> Gradient:
    """The gradient as `hosts` hosts send it: in equal parts, the last one padded."""
    share = -(-fragment.size // hosts)
    body = codecs.encode(delta, codec, share * hosts)
    width = len(body) // (share * hosts)
    parts = []
    for start in range(0, share * hosts, share):
        piece = bytearray(body[start * width : (start + share) * width])
        parts.append(HostPart(start, piece, scan(fragment, piece, codec, start)))
    return Gradient(weight, tuple(parts))


def step(
    fragment: Fragment,
    inputs: Sequence[Gradient],
    theta: Vector | None = None,
    momentum: Vector | None = None,
    *,
    rule: MergeRule = "RDA",
    codec: Codec = "float32",
    rate: float = 1.0,
    mu: float = 0.0,
    **more: Any,
) -> Result:
    return merge_step(
        fragment,
        inputs,
        np.zeros(fragment.size, np.float32) if theta is None else theta,
        np.zeros(fragment.size, np.float32) if momentum is None else momentum,
        codec=codec,
        rule=rule,
        learning_rate=rate,
        outer_momentum=mu,
        **more,
    )


def merged(fragment: Fragment, rule: MergeRule, *pairs: tuple[float, Vector]) -> Vector:
    """The merged outer gradient: Θ = 0 moves to its negative."""
    return -step(fragment, [gradient(fragment, w, v) for w, v in pairs], rule=rule).theta


@pytest.mark.parametrize("rule", ["RDA", "Mean"])
def test_units_that_take_turns_move_theta_as_far_as_all_of_them_together(rule: MergeRule) -> None:
    delta, units = vectors(1, ONE.size)[0], 4
    together = step(ONE, [gradient(ONE, 24.0, delta) for _ in range(units)], rule=rule).theta
    turn = replace(gradient(ONE, 24.0 * units, units * delta), divisor=units)
    np.testing.assert_allclose(step(ONE, [turn], rule=rule).theta, together, rtol=1e-5)
    both = step(ONE, [gradient(ONE, 24.0, delta), turn], rule=rule).theta
    np.testing.assert_allclose(both, together, rtol=1e-5)


def oracle(
    fragment: Fragment,
    weights: Sequence[float],
    deltas: Sequence[Vector],
    rule: MergeRule,
    clip: float = np.inf,
) -> Vector:
    """The published formulas in float64, piece by piece. Norms count up to `clip` medians."""
    shares = np.array(weights) / sum(weights)
    out = np.empty(fragment.size)
    for piece, start in zip(fragment.pieces, fragment.offsets, strict=True):
        at = slice(start, start + piece.size)
        rows = np.array([delta[at] for delta in deltas], np.float64)
        norms = np.linalg.norm(rows, axis=1)
        bounded = np.minimum(norms, clip * np.sort(norms)[(len(norms) - 1) // 2])
        out[at] = shares @ (rows * (bounded / norms)[:, None])
        if rule == "RDA" and not piece.embedding:
            direction = shares @ (rows / norms[:, None])
            out[at] = (shares @ bounded) * direction / np.linalg.norm(direction)
    return out


def close(found: Vector, expected: Vector, tolerance: float = 1e-6) -> bool:
    """Whether the difference is short compared with the vector."""
    return bool(np.linalg.norm(found - expected) <= tolerance * np.linalg.norm(expected))


@given(
    WEIGHTS,
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.integers(0, 99),
    st.sampled_from(["RDA", "Mean"]),
    st.sampled_from(CODECS),
)
@pytest.mark.parametrize("fragment", [THREE, TABLE], ids=["tensors", "embeddings-are-averaged-directly"])
def test_a_merge_is_the_published_formula_whatever_the_number_of_hosts(
    fragment: Fragment, weights: list[float], hosts: list[int], seed: int, rule: MergeRule, codec: Codec
) -> None:
    deltas = vectors(len(weights), fragment.size, seed)
    units = zip(weights, deltas, hosts * 9, strict=False)
    inputs = [gradient(fragment, weight, delta, codec, count) for weight, delta, count in units]
    found = -step(fragment, inputs, rule=rule, codec=codec, guard=False).theta
    assert close(found, oracle(fragment, weights, [rounded(v, codec) for v in deltas], rule))


@given(
    st.lists(st.tuples(st.floats(0.1, 1e3), st.floats(1e-4, 1e4)), min_size=1, max_size=9),
    st.integers(0, 99),
    st.sampled_from(["RDA", "Mean"]),
)
def test_with_the_guard_a_norm_among_three_or_more_counts_for_four_times_the_median_at_most(
    units: list[tuple[float, float]], seed: int, rule: MergeRule
) -> None:
    weights, lengths = zip(*units, strict=True)
    rows = vectors(len(units), THREE.size, seed)
    deltas = [np.float32(length) * row for length, row in zip(lengths, rows, strict=True)]
    found = merged(THREE, rule, *zip(weights, deltas, strict=True))
    clip = 4.0 if len(units) >= 3 else np.inf
    assert close(found, oracle(THREE, weights, deltas, rule, clip), 1e-4)


def test_a_tensor_that_few_units_moved_is_merged_as_it_is() -> None:
    still, moved = np.zeros(30, np.float32), np.full(30, 5, np.float32)
    few = [(1.0, still)] * 6 + [(1.0, moved), (1.0, 100 * moved)]
    assert close(merged(ONE, "Mean", *few), 101 * moved / 8)


@given(WEIGHTS, st.sampled_from(["RDA", "Mean"]))
def test_learner_of_weight_zero_has_no_effect(weights: list[float], rule: MergeRule) -> None:
    *rows, other = vectors(len(weights) + 1, 30)
    pairs = list(zip(weights, rows, strict=True))
    assert np.array_equal(merged(ONE, rule, (0.0, other), *pairs), merged(ONE, rule, *pairs))


@given(st.integers(0, 99), st.floats(0.1, 1.5), st.floats(0.0, 0.99), st.sampled_from(CODECS))
def test_one_learner_is_a_plain_outer_step_bit_for_bit(
    seed: int, rate: float, mu: float, codec: Codec
) -> None:
    theta, momentum, sent = vectors(3, THREE.size, seed)
    delta, eta, m = rounded(sent, codec), np.float32(rate), np.float32(mu)
    found = step(THREE, [gradient(THREE, 7.0, sent, codec)], theta, momentum, codec=codec, rate=rate, mu=mu)
    b = m * momentum + delta
    assert np.array_equal(found.momentum, b)
    assert np.array_equal(found.theta, theta - eta * (m * b + delta))
    assert found.wire == codecs.encode(found.theta, codec, THREE.size)


def test_directions_that_cancel_fall_back_to_the_mean_of_that_piece_alone() -> None:
    a, b = vectors(2, THREE.size)
    middle = slice(THREE.offsets[1], THREE.offsets[2])
    opposite = b.copy()
    opposite[middle] = -3 * a[middle]
    found = merged(THREE, "RDA", (1.0, a), (1.0, opposite))
    assert close(found[middle], -a[middle])
    expected = oracle(THREE, [1.0, 1.0], [a, opposite], "RDA")
    assert close(np.delete(found, middle), np.delete(expected, middle))


def test_learners_that_did_not_move_have_no_direction() -> None:
    moved, still = vectors(1, 30)[0], np.zeros(30, np.float32)
    assert not merged(ONE, "RDA", (1.0, still), (2.0, still)).any()
    assert close(merged(ONE, "RDA", (1.0, moved), (3.0, still)), moved / 4)


@pytest.mark.parametrize("codec", CODECS)
def test_the_number_of_threads_does_not_change_a_bit(codec: Codec) -> None:
    fragment = fragment_of(RANGE + 77, 20 * RANGE - 1, 5000)  # the second is larger than all scratch
    theta, momentum, *deltas = vectors(5, fragment.size)
    inputs = [gradient(fragment, 1.0 + i, v, codec) for i, v in enumerate(deltas)]
    found = set()
    for helpers in (0, 1, 3):
        with ThreadPoolExecutor(max(1, helpers)) as pool:
            how: dict[str, Any] = {"codec": codec, "pool": pool, "helpers": helpers}
            made = step(fragment, inputs, theta, momentum, rate=0.7, mu=0.9, **how)
        found.add((made.theta.tobytes(), made.momentum.tobytes(), made.wire.tobytes()))
    assert len(found) == 1


def test_merge_does_not_wait_for_busy_helpers() -> None:
    delta, freed = vectors(1, THREE.size)[0], threading.Event()
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(freed.wait, 30)
        found = step(THREE, [gradient(THREE, 1.0, delta)], pool=pool, helpers=1)
        assert not busy.done()
        freed.set()
    assert np.array_equal(found.theta, -delta)


@pytest.mark.parametrize("codec", CODECS)
def test_a_scan_has_the_squares_of_each_piece_and_sees_what_is_not_finite(codec: Codec) -> None:
    delta = vectors(1, THREE.size)[0]
    pieces = np.split(rounded(delta, codec).astype(np.float64), THREE.offsets[1:])
    parts = gradient(THREE, 1.0, delta, codec, hosts=3).parts
    for p, piece in enumerate(pieces):
        assert math.fsum(part.scan.squares[p] for part in parts) == pytest.approx(piece @ piece, rel=1e-12)
    for bad in (np.nan, np.inf):
        delta[-1] = bad
        parts = gradient(THREE, 1.0, delta, codec, hosts=3).parts
        assert [part.scan.finite for part in parts] == [True, True, False]
    huge = gradient(ONE, 1.0, np.full(30, 3e38, np.float32), codec)
    assert huge.parts[0].scan.finite


def test_unmergeable_input_is_an_error() -> None:
    delta = vectors(1, 30)[0]
    whole = gradient(ONE, 1.0, delta, hosts=3)
    with pytest.raises(MergeError, match="weights sum to 0"):
        step(ONE, [gradient(ONE, 0.0, delta)])
    with pytest.raises(MergeError, match="weights sum to nan"):
        step(ONE, [gradient(ONE, float("nan"), delta)])
    with pytest.raises(MergeError, match="one starts at 20, where 10 is wanted"):
        step(ONE, [Gradient(1.0, (whole.parts[0], whole.parts[2]))])
    with pytest.raises(MergeError, match="stop at 20, and the fragment at 30"):
        step(ONE, [Gradient(1.0, whole.parts[:2])])
    huge = gradient(ONE, 1.0, np.full(30, 3e38, np.float32))
    with pytest.raises(MergeError, match="not finite"):
        step(ONE, [huge], np.full(30, -3e38, np.float32), rule="Mean")
    nan = gradient(ONE, 1.0, np.full(30, np.nan, np.float32))
    for rule in ("RDA", "Mean"):
        with pytest.raises(MergeError, match="not finite"):
            step(ONE, [nan], rule=rule)


def test_a_fragment_of_a_shard_may_be_empty() -> None:
    made = step(Fragment(0, (), 0, ()), [Gradient(1.0, ())])
    assert made.theta.size == made.momentum.size == len(made.wire) == 0


def test_merge_allocates_the_new_version_and_a_threads_scratch() -> None:
    fragment = fragment_of(2 * SCRATCH * RANGE, RANGE)
    inputs = [gradient(fragment, 1.0, v, "bf16") for v in vectors(6, fragment.size)]
    theta, momentum = vectors(2, fragment.size)
    tracemalloc.start()
    try:
        made = step(fragment, inputs, theta, momentum, codec="bf16")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= made.theta.nbytes + made.momentum.nbytes + made.wire.nbytes + SCRATCH_BYTES


def test_memory_is_used_again_when_nothing_refers_to_it_and_not_before() -> None:
    buffers = Buffers(limit=8000)
    first = buffers.take(1000, np.float32)
    first[:] = 7
    view = memoryview(first[10:20].view(np.uint8).data)
    del first
    other = buffers.take(1000, np.float32)
    other[:] = 9
    assert np.frombuffer(view, np.float32).tolist() == [7] * 10
    assert buffers.unused == 0
    del view
    assert buffers.unused == 4000
    again = buffers.take(600, np.float32)  # nearly the same size, so it gets the memory of the first
    assert buffers.unused == 0 and again[10:20].tolist() == [7] * 10
    more = buffers.take(1000, np.float32)
    del again, other, more
    assert buffers.unused == 8000  # the limit

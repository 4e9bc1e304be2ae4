"""The protocol's pure rules: fragments, schedule, weights, grace, quorum, merge, outer step."""

from __future__ import annotations

import math
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.sync import outer, quorum, schedule
from atoll_runtime.sync.fragments import LayoutError, TensorInfo, build_layout, part_bounds
from atoll_runtime.sync.grace import Ema, grace
from atoll_runtime.sync.merge import Input, MergeError, merge
from atoll_runtime.sync.weights import weight

PLAIN = TensorInfo("w", (6, 5), stacked=False, embedding=False)
EMBEDDING = TensorInfo("table", (7, 3), stacked=False, embedding=True)

tensor_lists = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 6), st.booleans()), min_size=1, max_size=12
).map(
    lambda rows: [
        TensorInfo(f"t{i}", (layers, size), stacked=stacked, embedding=False)
        for i, (size, layers, stacked) in enumerate(rows)
    ]
)


@given(tensor_lists, st.integers(1, 6))
def test_every_element_is_in_one_fragment_and_comes_back(tensors: list[TensorInfo], fragments: int) -> None:
    pieces = sum(t.shape[0] if t.stacked else 1 for t in tensors)
    if fragments > pieces:
        with pytest.raises(LayoutError, match=rf"outer.fragments: {fragments} .* {pieces} pieces"):
            build_layout(tensors, fragments)
        return
    layout = build_layout(tensors, fragments)
    assert layout.fingerprint == build_layout(list(reversed(tensors)), fragments).fingerprint
    values = {t.name: np.random.default_rng(1).standard_normal(t.shape, np.float32) for t in tensors}
    back: dict[str, np.ndarray] = {}
    for p in range(fragments):
        layout.unflatten(p, layout.flatten(values, p), back)
    assert layout.size == sum(math.prod(t.shape) for t in tensors)
    assert all(np.array_equal(values[name], back[name]) for name in values)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 30), min_size=2, max_size=7), st.integers(2, 3))
def test_the_largest_fragment_is_at_most_four_thirds_of_the_best_possible(
    sizes: list[int], bins: int
) -> None:
    if bins > len(sizes):
        return
    tensors = [TensorInfo(f"t{i}", (size,), stacked=False, embedding=False) for i, size in enumerate(sizes)]
    peak = max(fragment.size for fragment in build_layout(tensors, bins).fragments)
    best = min(
        max(sum(s for s, b in zip(sizes, choice, strict=True) if b == each) for each in range(bins))
        for choice in product(range(bins), repeat=len(sizes))
    )
    assert peak <= best * 4 / 3 + 1e-9


def test_a_layout_names_the_embedding_and_differs_with_the_cut() -> None:
    layout = build_layout([PLAIN, EMBEDDING], 2)
    assert [piece.embedding for f in layout.fragments for piece in f.pieces] == [False, True]
    assert layout.fingerprint != build_layout([PLAIN, EMBEDDING], 1).fingerprint


@given(st.integers(1, 1000), st.integers(1, 16))
def test_parts_are_even_and_cover_the_padded_fragment(size: int, parts: int) -> None:
    bounds = part_bounds(size, parts)
    assert len({stop - start for start, stop in bounds}) == 1
    assert bounds[0][0] == 0 and size <= bounds[-1][1] < size + parts
    assert all(a[1] == b[0] for a, b in pairwise(bounds))


@given(st.integers(1, 30), st.integers(0, 30))
def test_each_fragment_is_due_once_in_an_interval(fragments: int, more: int) -> None:
    interval = fragments + more
    found = [schedule.due(step, fragments, interval) for step in range(interval, 2 * interval)]
    assert sorted(p for p in found if p is not None) == list(range(fragments))
    assert found[0] == 0
    assert schedule.due(0, fragments, interval) is None


@pytest.mark.parametrize(
    ("steps", "tokens", "expected"), [(0, 0, 0.0), (0, 5, 0.0), (4, 8, 16.0), (2, 8, 32.0), (4, 16, 64.0)]
)
def test_a_weight_is_quantity_times_quality(steps: int, tokens: int, expected: float) -> None:
    assert weight(steps, tokens) == expected


@pytest.mark.parametrize(
    ("quorum_seconds", "sync_seconds", "max_steps", "expected"),
    [(0.5, 0.5, 10, 0.8), (0.0, 0.0, 1, 1.0), (1.5, 0.9, 1, 0.0), (0.5, 0.5, 0, 0.0)],
    ids=["slack", "at-most-a-step", "no-slack", "no-grace"],
)
def test_grace_is_a_fraction_of_the_slack_within_its_bounds(
    quorum_seconds: float, sync_seconds: float, max_steps: float, expected: float
) -> None:
    found = grace(1.0, quorum_seconds, sync_seconds, overlap_steps=2, fraction=0.8, max_steps=max_steps)
    assert found == pytest.approx(expected)


def test_an_average_takes_its_first_sample_whole() -> None:
    average = Ema(0.5)
    average.add(4.0)
    average.add(8.0)
    assert average.value == 6.0


def decide(contributed: str, awaited: str, grace_until: float | None, now: float) -> object:
    return quorum.decide(
        contributed.split(), awaited.split(), minimum=2, grace_until=grace_until, expires=10.0, now=now
    )


def test_a_round_is_merged_when_all_are_in_or_the_grace_is_over_and_says_what_it_waits_for() -> None:
    assert decide("a b", "", 5.0, 1.0) == quorum.Ready()
    assert decide("a b", "c", 5.0, 5.0) == quorum.Ready()
    assert decide("a b", "c", 5.0, 4.0) == quorum.Waiting(5.0, "2 in (K=2), grace window for c")
    assert decide("a", "b", None, 1.0) == quorum.Waiting(10.0, "1 of K=2 contributions in, waiting for b")
    assert decide("a", "", None, 1.0) == quorum.Waiting(
        10.0, "1 of K=2 contributions in, no live unit left to wait for"
    )
    assert decide("a", "b", None, 10.0) == quorum.Expired("1 of K=2 contributions in at the time-out")


FRAGMENT = build_layout([PLAIN], 1).fragments[0]
TABLE = build_layout([EMBEDDING], 1).fragments[0]


def vectors(count: int, size: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).standard_normal((count, size)).astype(np.float32))


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16])
def test_orthogonal_gradients_of_norm_r_merge_to_norm_r(count: int) -> None:
    inputs = [Input(3.0, 2.5 * row) for row in np.eye(30, dtype=np.float32)[:count]]
    assert np.linalg.norm(merge(FRAGMENT, inputs, "RDA")) == pytest.approx(2.5, rel=1e-6)
    assert np.linalg.norm(merge(FRAGMENT, inputs, "Mean")) == pytest.approx(2.5 / count**0.5, rel=1e-6)


@given(st.lists(st.floats(0.1, 1e3), min_size=1, max_size=5), st.integers(0, 99), st.floats(1e-3, 1e3))
def test_a_merge_scales_with_its_inputs_and_not_with_their_order_or_total_weight(
    weights: list[float], seed: int, scale: float
) -> None:
    deltas = vectors(len(weights), 30, seed)
    inputs = [Input(w, v) for w, v in zip(weights, deltas, strict=True)]
    merged = merge(FRAGMENT, inputs, "RDA")
    close = {"rtol": 1e-3, "atol": 1e-5}
    assert np.allclose(merge(FRAGMENT, inputs[::-1], "RDA"), merged, **close)
    heavier = [Input(5 * i.weight, i.delta) for i in inputs]
    assert np.allclose(merge(FRAGMENT, heavier, "RDA"), merged, **close)
    scaled = [Input(i.weight, i.delta * np.float32(scale)) for i in inputs]
    assert np.allclose(merge(FRAGMENT, scaled, "RDA") / np.float32(scale), merged, **close)
    assert np.array_equal(merge(FRAGMENT, inputs, "RDA"), merged)  # bit for bit


def test_a_unit_of_weight_zero_changes_nothing() -> None:
    a, b = vectors(2, 30)
    alone = merge(FRAGMENT, [Input(2.0, a)], "RDA")
    assert np.allclose(merge(FRAGMENT, [Input(2.0, a), Input(0.0, b)], "RDA"), alone, atol=1e-6)
    assert np.allclose(alone, a, atol=1e-6)


def test_the_weighted_merge_is_the_formula_and_embeddings_are_averaged_directly() -> None:
    a, b = vectors(2, 30)
    na, nb = np.linalg.norm(a), np.linalg.norm(b)
    direction = 0.75 * a / na + 0.25 * b / nb
    expected = (0.75 * na + 0.25 * nb) * direction / np.linalg.norm(direction)
    assert np.allclose(merge(FRAGMENT, [Input(3.0, a), Input(1.0, b)], "RDA"), expected, atol=1e-5)
    a, b = vectors(2, 21)
    assert np.allclose(merge(TABLE, [Input(3.0, a), Input(1.0, b)], "RDA"), 0.75 * a + 0.25 * b, atol=1e-6)


def test_directions_that_cancel_fall_back_to_the_mean() -> None:
    a = vectors(1, 30)[0]
    merged = merge(FRAGMENT, [Input(1.0, 3 * a), Input(1.0, -a)], "RDA")
    assert np.allclose(merged, a, atol=1e-5)


def test_what_cannot_be_merged_is_an_error() -> None:
    with pytest.raises(MergeError, match="weights sum to 0"):
        merge(FRAGMENT, [Input(0.0, vectors(1, 30)[0])], "RDA")
    huge = np.full(30, 3e38, np.float32)
    with pytest.raises(MergeError, match="not finite"):
        merge(FRAGMENT, [Input(1.0, huge)], "Mean")


def test_a_merge_of_many_blocks_equals_the_plain_sum() -> None:
    big = TensorInfo("big", (200_001,), stacked=False, embedding=True)
    fragment = build_layout([big], 1).fragments[0]
    a, b = vectors(2, big.shape[0])
    assert np.allclose(merge(fragment, [Input(1.0, a), Input(1.0, b)], "RDA"), (a + b) / 2, atol=1e-6)


def test_the_outer_step_is_nesterov_by_hand() -> None:
    theta, momentum = np.array([1.0, -2.0], np.float32), np.array([0.5, 0.0], np.float32)
    delta = np.array([0.1, 0.2], np.float32)
    new, b = outer.step(theta, momentum, delta, rate=0.7, mu=0.9)
    assert b == pytest.approx([0.9 * 0.5 + 0.1, 0.2])  # b ← μb + Δ
    assert new == pytest.approx([1.0 - 0.7 * (0.1 + 0.9 * 0.55), -2.0 - 0.7 * (0.2 + 0.9 * 0.2)])
    assert theta.tolist() == [1.0, -2.0] and momentum.tolist() == [0.5, 0.0]


def test_one_learner_with_rate_one_and_no_momentum_is_taken_as_it_is() -> None:
    anchor, learned = vectors(2, 30)
    merged = merge(FRAGMENT, [Input(9.0, anchor - learned)], "RDA")
    theta, _ = outer.step(anchor, np.zeros_like(anchor), merged, rate=1.0, mu=0.0)
    assert np.allclose(theta, learned, atol=1e-5)

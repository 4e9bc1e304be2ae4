"""The protocol's pure rules: fragments, schedule, weights, grace, quorum."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lone_shard import LONE

from atoll_runtime.contract import SIZES, Dimensions, ModelSpec
from atoll_runtime.model import describe
from atoll_runtime.protocol import schedule
from atoll_runtime.protocol.clipping import divisors, weights
from atoll_runtime.protocol.fragments import (
    BLOCK,
    Layout,
    LayoutError,
    Piece,
    TensorInfo,
    build_layout,
    cut,
    fingerprint,
    lay,
    part_bounds,
)
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.messages import Part
from atoll_runtime.protocol.pace import Ema, Timing
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.units import HISTORY, Unit
from atoll_runtime.protocol.versions import Versions

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


def comes_back(tensors: list[TensorInfo], layout: Layout) -> bool:
    """Whether all elements are the same after they were cut into fragments and put together."""
    values = {t.name: np.random.default_rng(1).standard_normal(t.shape, np.float32) for t in tensors}
    back: dict[str, np.ndarray] = {}
    for p in range(len(layout.fragments)):
        layout.unflatten(p, layout.flatten(values, p), back)
    return all(np.array_equal(values[name], back[name]) for name in values)


@given(st.integers(1, 6), st.integers(1, 9))
def test_a_fragment_comes_back_from_its_hosts_parts(fragments: int, hosts: int) -> None:
    tensors = [
        TensorInfo("head", (5, 8 << 12), stacked=False, embedding=True),  # its bands are not contiguous
        TensorInfo("layers", (3, 4, 5), stacked=True, embedding=False),
        TensorInfo("table", (8 << 12, 5), stacked=False, embedding=True),
        PLAIN,
    ]
    layout = build_layout(tensors, fragments)
    values = {t.name: np.random.default_rng(1).standard_normal(t.shape, np.float32) for t in tensors}
    back: dict[str, np.ndarray] = {}
    for p, fragment in enumerate(layout.fragments):
        bounds = part_bounds(fragment.size, hosts)
        flat = np.full(bounds[-1][1], np.nan, np.float32)  # beyond the fragment's end too
        flat[: fragment.size] = layout.flatten(values, p)
        for start, stop in bounds:
            layout.unflatten(p, flat[start:stop], back, start)
    assert all(np.array_equal(values[name], back[name]) for name in values)


@given(tensor_lists, st.integers(1, 6))
def test_every_element_is_in_one_fragment_and_comes_back(tensors: list[TensorInfo], fragments: int) -> None:
    pieces = sum(t.shape[0] if t.stacked else 1 for t in tensors)
    if fragments > pieces:
        with pytest.raises(LayoutError, match=rf"outer.fragments: {fragments} .* {pieces} pieces"):
            build_layout(tensors, fragments)
        return
    layout = build_layout(tensors, fragments)
    assert layout.fingerprint == build_layout(list(reversed(tensors)), fragments).fingerprint
    assert layout.size == sum(math.prod(t.shape) for t in tensors)
    assert comes_back(tensors, layout)


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


VOCABULARY = 262_144


def dense(layers: int, width: int, hidden: int, tied: bool) -> Dimensions:
    return Dimensions(layers=layers, width=width, heads=8, kv_heads=4, hidden=hidden, tied=tied)


@pytest.mark.parametrize("fragments", [8, 12, 16, 24])
@pytest.mark.parametrize(
    "size",
    [
        *(pytest.param(size, id=name) for name, size in SIZES.items()),
        pytest.param(dense(26, 1152, 6912, True), id="narrow"),
        pytest.param(dense(24, 2048, 5504, False), id="untied"),
        pytest.param(dense(48, 3840, 15360, True), id="deep"),
        pytest.param(dense(2, 64, 256, False), id="tiny"),
    ],
)
def test_a_large_vocabulary_leaves_the_largest_fragment_of_eight_shards_at_four_thirds_of_the_mean(
    size: Dimensions, fragments: int
) -> None:
    model = ModelSpec(dimensions=size.model_copy(update={"vocabulary": VOCABULARY}))
    layout = build_layout(describe(model), fragments, shards=8)
    assert max(each.size for each in layout.fragments) <= 4 / 3 * layout.size / len(layout.fragments)


@given(
    st.sampled_from([(4096, 8), (8, 4096), (50_257, 3), (32_003, 2), (3, 5, 6000)]),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_bands_of_an_embedding_are_equal_and_come_back_in_their_places(
    shape: tuple[int, ...], fragments: int, shards: int
) -> None:
    tensors = [TensorInfo("layer", (12, 40, 40), True, False), TensorInfo("table", shape, False, True)]
    layout = build_layout(tensors, fragments, shards)
    assert comes_back(tensors, layout)
    assert layout.fingerprint == build_layout(tensors, fragments).fingerprint


@pytest.mark.parametrize("shape", [(3, 8, 5, 2), (2, 7, 40), (4, 6), (5,)])
def test_bands_of_very_large_layers_are_equal_and_come_back_in_their_places(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll_runtime.protocol.fragments.LEAST_LAYER", 0)
    tensors = [TensorInfo("layers", shape, True, False), TensorInfo("w", (50, 40), False, False)]
    sizes = {piece.size for piece in cut(tensors) if piece.tensor == "layers"}
    assert len(sizes) == 1 and max(sizes) <= max(math.prod(shape[2:]), 2000 // 100)
    for shards in (1, 3):
        assert comes_back(tensors, build_layout(tensors, 2, shards))


@pytest.mark.parametrize(
    ("length", "bands"),
    [(4096, 4), (4100, 4), (1018 * 4, 4), (5461, 1), (1018, 2), (3 * 1019, 3), (13 * 400, 4), (13 * 401, 13)],
)
def test_a_layer_has_at_most_four_times_the_bands_that_it_needs(length: int, bands: int) -> None:
    size = length * 3_000
    tensors = [TensorInfo("layers", (1, length, 3_000), True, False)]
    tensors.append(TensorInfo("w", (192 * (size // 4 + 1) - size,), False, False))  # one layer needs four
    assert {piece.bands for piece in cut(tensors) if piece.tensor == "layers"} == {bands}


def test_a_layout_names_the_embedding_and_differs_with_the_cut() -> None:
    layout = build_layout([PLAIN, EMBEDDING], 2)
    assert [piece.embedding for f in layout.fragments for piece in f.pieces] == [False, True]
    assert layout.fingerprint != build_layout([PLAIN, EMBEDDING], 1).fingerprint


def test_a_layout_differs_with_the_bands_of_layers() -> None:
    def prints(bands: int) -> str:
        return fingerprint([lay(0, [Piece("w", i, (5, 3), 15, False, bands=bands) for i in range(8)])])

    assert len({prints(bands) for bands in (1, 2, 4)}) == 3


@given(st.integers(1, 1000), st.integers(1, 16))
def test_parts_are_even_and_cover_the_padded_fragment(size: int, parts: int) -> None:
    bounds = part_bounds(size, parts)
    assert len({stop - start for start, stop in bounds}) == 1
    assert bounds[0][0] == 0 and size <= bounds[-1][1] < size + parts * BLOCK
    assert bounds[0][1] % BLOCK == 0
    assert all(a[1] == b[0] for a, b in pairwise(bounds))


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 60))
def test_each_fragment_is_due_once_in_an_interval(fragments: int, more: int, later: int) -> None:
    interval = fragments + more
    found = [schedule.due(step, fragments, interval) for step in range(2 * interval + later)]
    assert sorted(p for p in found[interval : 2 * interval] if p is not None) == list(range(fragments))
    assert (found[0], found[interval]) == (None, 0)
    for p in range(fragments):
        last = max((step for step, each in enumerate(found) if each == p), default=0)
        assert schedule.newest(len(found) - 1, p, fragments, interval) == last


@pytest.mark.parametrize(
    ("steps", "guard", "expected"),
    [
        pytest.param([4], True, [400.0], id="quantity-times-quality"),
        pytest.param([4, 10**9], True, [400.0, 1e11], id="two-units-have-no-median"),
        pytest.param([24, 96, 24], True, [2400.0, 9600.0, 2400.0], id="four-times-the-median"),
        pytest.param([24, 97, 24], True, [2400.0, 9600.0, 2400.0], id="more"),
        pytest.param([24, 97, 24], False, [2400.0, 9700.0, 2400.0], id="without-the-guard"),
        pytest.param([24, 10**9, 20, 28], True, [2400.0, 9600.0, 2000.0, 2800.0], id="a-lie"),
        pytest.param([1, 96, 24], True, [100.0, 9600.0, 2400.0], id="a-unit-that-has-just-joined"),
    ],
)
def test_a_weight_is_tokens_times_tokens_per_step_of_a_bounded_number_of_steps(
    steps: list[int], guard: bool, expected: list[float]
) -> None:
    members = [
        Part(f"u{i}", 1, 0, 1, RoundId(1, 0, 0), 0, n, 10 * n, 0, 0, 0, 1, 1, 10 * n)
        for i, n in enumerate(steps)
    ]
    assert weights(members, guard) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("anchor", "steps", "span"),
    [
        (96, 24, 1),
        (96, 29, 1),
        (96, 100, 1),  # four times as fast as the slowest, in one interval
        (72, 48, 2),
        (72, 24, 1),  # work of one interval that came an interval later
        (0, 96, 4),
        (0, 10**9, 5),
        (95, 48, 2),
    ],
)
def test_what_counts_of_a_contribution_is_one_interval_of_its_work(
    anchor: int, steps: int, span: int
) -> None:
    part = Part("u", 1, 0, 1, RoundId(120, 0, 0), anchor, steps, 10 * steps, 0, 0, 0, 1, 1, 10 * steps)
    assert divisors([part], 96, 24) == [span]


@pytest.mark.parametrize(
    ("quorum_seconds", "sync_seconds", "max_steps", "expected"),
    [(0.5, 0.5, 10, 0.8), (0.0, 0.0, 1, 1.0), (1.5, 0.9, 1, 0.0), (0.5, 0.5, 0, 0.0)],
    ids=["slack", "at-most-a-step", "no-slack", "no-grace"],
)
def test_grace_is_a_fraction_of_the_slack_within_its_bounds(
    quorum_seconds: float, sync_seconds: float, max_steps: float, expected: float
) -> None:
    timing = Timing(Ema(1.0, quorum_seconds), Ema(1.0, sync_seconds))
    rules = replace(LONE, fragments=2, interval=4, grace_fraction=0.8, grace_steps=max_steps)
    assert timing.grace(1.0, rules) == pytest.approx(expected)


@pytest.mark.parametrize(("turn", "intervals"), [(0.5, 8), (1.0, 8), (1.1, 16), (4.0, 32), (1e6, 256)])
def test_an_anchor_may_be_eight_turns_of_its_link_old(turn: float, intervals: int) -> None:
    assert replace(LONE, interval=12).oldest(turn) == 12 * intervals


steps = st.integers(0, 400)


@given(st.sets(steps, min_size=1), steps, st.none() | steps, st.none() | steps, st.sampled_from([1.0, 3.0]))
def test_the_oldest_anchor_is_the_first_that_is_usable(
    history: set[int], entered: int, joined: int | None, spoiled: int | None, turn: float
) -> None:
    versions = Versions(0, 1, sorted(history))
    unit = Unit("a", Account((0,)), entered=entered)
    unit.turns[0] = turn
    unit.included_in = {} if joined is None else {0: joined}
    unit.spoiled = {} if spoiled is None else {0: spoiled}
    rules = replace(LONE, interval=12)
    usable = [each for each in versions.history if not versions.unusable(each, unit, 400, rules)]
    assert versions.least(unit, 400, rules) == min(usable, default=versions.current + 1)


def test_to_find_the_oldest_anchor_takes_no_look_at_every_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is needed for every unit in every round, and for every fragment when a host connects."""
    seen, unusable = list[int](), Versions.unusable

    def look(versions: Versions, anchor: int, unit: Unit, step: int, rules: Rules) -> str:
        seen.append(anchor)
        return unusable(versions, anchor, unit, step, rules)

    monkeypatch.setattr(Versions, "unusable", look)
    versions = Versions(0, 1, list(range(HISTORY)))
    unit = Unit("a", Account((0,)), entered=7)
    assert versions.least(unit, HISTORY, LONE) == HISTORY - 8
    assert len(seen) < 10

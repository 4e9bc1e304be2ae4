"""Bandwidth between sites: the published figures, and what must hold for any traffic."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from atoll_runtime.protocol.schedule import due
from atoll_runtime.simulate.wan.bandwidth import need, utilization
from atoll_runtime.simulate.wan.traffic import Method, Traffic


def traffic(**changes: object) -> Traffic:
    return Traffic(**{"params": 5e9, "step_seconds": 1.0, **changes})  # type: ignore[arg-type]


def test_data_parallel_training_is_the_closed_form_of_a_pipeline_of_layers() -> None:
    """Bound by the link, a step is the forward pass, the last layer's backward pass and one reduction."""
    for layers, share in ((24, 0.5), (108, 0.9)):
        hidden = 1 / 3 + 2 / 3 / layers
        expected = 2 * 7 / 8 * 5 * 16 / (1 / share - hidden)
        found = need(Method.DATA_PARALLEL, traffic(layers=layers), share)
        assert found.gbps_peak == pytest.approx(expected, rel=1e-5)


@settings(max_examples=60)
@given(st.data(), st.integers(1, 30), st.integers(1, 8))
def test_the_link_is_the_least_on_which_no_fragment_of_the_schedule_is_late(
    data: st.DataObject, interval: int, overlap: int
) -> None:
    """Held against a queue that is served in order, step by step, over four intervals."""
    fragments = data.draw(st.integers(1, interval))
    weights = data.draw(st.lists(st.integers(1, 9), min_size=fragments, max_size=fragments))
    sizes = tuple(weight / sum(weights) for weight in weights)
    overlap = min(overlap, interval)
    case = traffic(interval=interval, fragments=fragments, overlap=overlap, sizes=sizes)

    def lateness(gbps: float) -> float:
        free = worst = 0.0
        for step in range(interval, 5 * interval):
            fragment = due(step, fragments, interval)
            if fragment is not None:
                free = max(free, step) + case.params * case.bits * sizes[fragment] / (gbps * 1e9)
                worst = max(worst, free - step - overlap)
        return worst

    found = need(Method.DECOUPLED, case)
    assert lateness(found.gbps_link * (1 + 1e-9)) < 1e-6
    if found.gbps_link > 1.001 * found.gbps_mean:
        assert lateness(found.gbps_link * 0.999) > 0


CASES = st.builds(
    traffic,
    params=st.floats(1e8, 1e12),
    step_seconds=st.floats(0.05, 20),
    bits=st.sampled_from([4, 8, 16, 32]),
    sites=st.integers(2, 64),
    interval=st.integers(12, 120),
    fragments=st.integers(1, 12),
    overlap=st.integers(1, 12),
    layers=st.integers(4, 48),
)


@settings(max_examples=40)
@given(
    st.sampled_from([method for method in Method if method is not Method.DECOUPLED]),
    CASES,
    st.floats(0.3, 0.985),
)
@example(Method.STREAMING_OVERLAP, traffic(interval=12, fragments=4, overlap=8, layers=6), 0.75)
def test_need_and_utilization_are_each_others_inverse(method: Method, case: Traffic, share: float) -> None:
    gbps = need(method, case, share).gbps_link
    assert utilization(method, case, gbps) == pytest.approx(share, abs=1e-4)
    assert utilization(method, case, 0.99 * gbps) < share

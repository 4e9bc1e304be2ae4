"""What a host says of its link: extremes and shares of the last minutes, as its transfers show them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.protocol.linkmeter import MOST_PERIODS, WINDOW_SECONDS, Direction, LinkMeter, LinkReading

SECOND = 125_000_000
"""Bytes of a second at 1 Gbit/s."""


def send(meter: LinkMeter, since: float, until: float, size: int, direction: Direction = "up") -> None:
    meter.began(direction, since)
    meter.ended(direction, until, size)


def test_a_link_that_was_not_used_shows_nothing() -> None:
    assert LinkMeter(0.0).reading(0.0) == LinkMeter(0.0).reading(1e6) == LinkReading()


def test_a_rate_is_the_largest_of_the_window_in_its_direction() -> None:
    meter = LinkMeter(0.0)
    send(meter, 0.0, 1.0, 2 * SECOND)
    send(meter, 10.0, 11.0, SECOND)
    send(meter, 20.0, 22.0, SECOND, "down")
    for now, up, down in ((30.0, 2.0, 0.5), (WINDOW_SECONDS + 5, 1.0, 0.5), (WINDOW_SECONDS + 30, 0.0, 0.0)):
        reading = meter.reading(now)
        assert (reading.up_gbps, reading.down_gbps) == pytest.approx((up, down)), now


def test_transfers_beside_each_other_share_the_link_and_their_time_counts_once() -> None:
    meter = LinkMeter(0.0)
    for _ in range(3):
        meter.began("up", 10.0)
    meter.ended("up", 13.0, SECOND)
    meter.ended("up", 13.0, 0)  # it broke
    meter.ended("up", 16.0, 2 * SECOND)
    reading = meter.reading(20.0)
    assert (reading.up_gbps, reading.busy_share) == pytest.approx((0.5, 0.3))


def test_the_busy_share_is_of_the_window_and_of_the_direction_that_has_more() -> None:
    meter = LinkMeter(0.0)
    send(meter, 0.0, 100.0, SECOND)
    send(meter, 0.0, 50.0, SECOND, "down")
    assert meter.reading(200.0).busy_share == pytest.approx(0.5)
    now = WINDOW_SECONDS + 50
    assert meter.reading(now).busy_share == pytest.approx(50 / WINDOW_SECONDS), "its first half has passed"
    meter.began("down", now - 60)
    assert meter.reading(now).busy_share == pytest.approx(60 / WINDOW_SECONDS), "it is under way"


def test_the_busy_share_of_very_short_transfers_is_of_those_that_are_remembered() -> None:
    meter = LinkMeter(0.0)
    for n in range(2 * MOST_PERIODS):
        send(meter, n / 100, n / 100 + 0.004, SECOND)
    assert meter.reading(2 * MOST_PERIODS / 100).busy_share == pytest.approx(0.4, rel=0.01)


def test_the_round_trip_is_the_shortest_of_the_window_and_failures_are_counted() -> None:
    meter = LinkMeter(0.0)
    for now, seconds in ((0.0, 0.04), (10.0, 0.3), (20.0, 0.1)):
        meter.answered(seconds, now)
        meter.failed()
    assert meter.reading(30.0) == LinkReading(rtt_seconds=0.04, failures=3)
    assert meter.reading(WINDOW_SECONDS + 15.0).rtt_seconds == 0.1


@given(
    st.floats(0.001, 100.0),
    st.lists(
        st.tuples(st.sampled_from(("up", "down")), st.integers(1, 10**10), st.floats(0.0, 200.0)), min_size=1
    ),
)
def test_no_transfer_makes_a_link_seem_faster_than_it_is(
    gbps: float, transfers: list[tuple[Direction, int, float]]
) -> None:
    """One transfer after another, with pauses: the last one of each direction shows the link's rate."""
    meter, now, last = LinkMeter(0.0), 0.0, {"up": -1.0, "down": -1.0}
    for direction, size, pause in transfers:
        seconds = size * 8e-9 / gbps
        send(meter, now + pause, now + pause + seconds, size, direction)
        now += pause + seconds
        last[direction] = now
    reading = meter.reading(now)
    for direction, rate in (("up", reading.up_gbps), ("down", reading.down_gbps)):
        assert rate <= gbps * (1 + 1e-3)
        if now - WINDOW_SECONDS < last[direction] >= 0:
            assert rate >= gbps * (1 - 1e-3)
    assert 0.0 <= reading.busy_share <= 1.0

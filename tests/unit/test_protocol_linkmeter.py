"""What a host reports about its link: extremes and shares of the last minutes, measured by its transfers."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll_runtime.protocol.linkmeter import (
    MOST_PERIODS,
    WINDOW_SECONDS,
    Direction,
    LinkMeter,
    LinkReading,
    LinkUse,
)

SECOND = 1e9
"""Bits in a second at 1 Gbit/s."""
NO_USE = LinkUse()


def send(meter: LinkMeter, since: float, until: float, bits: float, direction: Direction = "up") -> None:
    meter.ended(meter.began(direction, since, bits), until, bits)


def test_a_link_that_was_not_used_shows_nothing() -> None:
    assert LinkMeter(0.0).reading(0.0, NO_USE) == LinkMeter(0.0).reading(1e6, NO_USE) == LinkReading()


def test_a_rate_is_the_largest_of_the_window_in_its_direction() -> None:
    meter = LinkMeter(0.0)
    send(meter, 0.0, 1.0, 2 * SECOND)
    send(meter, 10.0, 11.0, SECOND)
    send(meter, 20.0, 22.0, SECOND, "down")
    for now, up, down in ((30.0, 2.0, 0.5), (WINDOW_SECONDS + 5, 1.0, 0.5), (WINDOW_SECONDS + 30, 0.0, 0.0)):
        reading = meter.reading(now, NO_USE)
        assert (reading.up_gbps, reading.down_gbps) == pytest.approx((up, down)), now


def test_transfers_beside_each_other_share_the_link_and_their_time_counts_once() -> None:
    meter = LinkMeter(0.0)
    first, broken, second = (meter.began("up", 10.0, SECOND) for _ in range(3))
    meter.ended(first, 13.0, SECOND)
    meter.ended(broken, 13.0, 0)
    meter.ended(second, 16.0, 2 * SECOND)
    reading = meter.reading(20.0, NO_USE)
    assert (reading.up_gbps, reading.busy_share) == pytest.approx((0.5, 0.3))


def test_the_busy_share_of_very_short_transfers_is_of_those_that_are_remembered() -> None:
    meter = LinkMeter(0.0)
    for n in range(2 * MOST_PERIODS):
        send(meter, n / 100, n / 100 + 0.004, SECOND)
    assert meter.reading(2 * MOST_PERIODS / 100, NO_USE).busy_share == pytest.approx(0.4, rel=0.01)


def test_the_round_trip_is_the_shortest_of_the_window_and_failures_are_counted() -> None:
    meter = LinkMeter(0.0)
    for now, seconds in ((0.0, 0.04), (10.0, 0.3), (20.0, 0.1)):
        meter.answered(meter.began("down", now, SECOND), seconds, now)
        meter.failed()
    reading = meter.reading(30.0, NO_USE)
    assert (reading.rtt_seconds, reading.failures) == (0.04, 3)
    assert meter.reading(WINDOW_SECONDS + 15.0, NO_USE).rtt_seconds == 0.1


def test_a_round_trip_stays_known_where_fetches_are_further_apart_than_the_window() -> None:
    """With two fragments, H = 128 and steps of 5 s there is one in 320 s. The number of streams depends on it."""
    meter = LinkMeter(0.0)
    assert str(meter.reading(0.0, NO_USE).rtt_seconds) == "0.0", "not -0.0"
    for now, seconds in ((0.0, 0.3), (320.0, 0.1)):
        meter.answered(meter.began("down", now, SECOND), seconds, now)
        assert meter.round_trip(now + 319.0) == seconds


@given(
    st.floats(0.001, 100.0),
    st.lists(
        st.tuples(st.sampled_from(("up", "down")), st.integers(1, 10**10), st.floats(0.0, 200.0)), min_size=1
    ),
)
def test_no_transfer_makes_a_link_seem_faster_than_it_is(
    gbps: float, transfers: list[tuple[Direction, int, float]]
) -> None:
    """One transfer follows another, with pauses. The last one of each direction shows the link's rate."""
    meter, now, last = LinkMeter(0.0), 0.0, {"up": -1.0, "down": -1.0}
    for direction, size, pause in transfers:
        seconds = size * 1e-9 / gbps
        send(meter, now + pause, now + pause + seconds, size, direction)
        now += pause + seconds
        last[direction] = now
    reading = meter.reading(now, NO_USE)
    for direction, rate in (("up", reading.up_gbps), ("down", reading.down_gbps)):
        assert rate <= gbps * (1 + 1e-3)
        if now - WINDOW_SECONDS < last[direction] >= 0:
            assert rate >= gbps * (1 - 1e-3)
    assert 0.0 <= reading.busy_share <= 1.0


@given(
    st.lists(
        st.tuples(st.sampled_from(("up", "down")), st.floats(0.001, 100.0), st.floats(0.0, 200.0)), min_size=1
    )
)
def test_the_busy_share_is_what_the_transfers_of_the_window_sum_up_to(
    transfers: list[tuple[Direction, float, float]],
) -> None:
    """While it is under way and once it has ended. One transfer follows another, with pauses."""
    meter, now, busy = LinkMeter(0.0), 0.0, dict[str, list[tuple[float, float]]](up=[], down=[])
    for direction, seconds, pause in transfers:
        since, now = now + pause, now + pause + seconds
        under_way = meter.began(direction, since, SECOND)
        busy[direction].append((since, now))
        shares = [meter.reading(now, NO_USE).busy_share]
        meter.ended(under_way, now, SECOND)
        shares.append(meter.reading(now, NO_USE).busy_share)
        begin = max(now - WINDOW_SECONDS, 0.0)
        most = max(sum(max(stop - max(since, begin), 0.0) for since, stop in each) for each in busy.values())
        assert shares == pytest.approx([most / (now - begin)] * 2, abs=1e-9)


def test_a_rate_of_late_is_that_of_the_last_transfers_a_faster_one_counts_at_once() -> None:
    meter = LinkMeter(0.0)
    assert meter.rate("up", 0.0) == math.inf
    for n in range(3):
        send(meter, 10.0 * n, 10.0 * n + 1, SECOND)
    assert meter.rate("up", 30.0) == pytest.approx(1e9)
    for n in range(3):
        send(meter, 40.0 + 20 * n, 50.0 + 20 * n, SECOND)
    assert meter.rate("up", 100.0) == pytest.approx(1e8), "a tenth, after three of them"
    send(meter, 100.0, 101.0, SECOND)
    assert meter.rate("up", 101.0) == pytest.approx(1e9)
    assert meter.rate("down", 101.0) == math.inf


def test_a_transfer_that_takes_long_shows_that_the_link_is_slow_before_it_ends() -> None:
    meter = LinkMeter(0.0)
    for n in range(3):
        send(meter, n, n + 1, SECOND)
    under_way = meter.began("up", 10.0, SECOND)
    assert meter.rate("up", 10.5) == pytest.approx(1e9)
    assert meter.rate("up", 60.0) == pytest.approx(2e7)
    meter.ended(under_way, 70.0, SECOND)
    assert meter.rate("up", 70.0) == pytest.approx(1e9), "it was held up, and the ones before it were not"


def test_transfers_beside_each_other_and_their_answers_make_a_link_seem_no_slower() -> None:
    meter = LinkMeter(0.0)
    for first in (0.0, 10.0):
        pair = [meter.began("up", first, SECOND) for _ in range(2)]
        for each in pair:
            meter.ended(each, first + 2.0, SECOND)
    assert meter.rate("up", 20.0) == pytest.approx(1e9)
    far = LinkMeter(0.0)
    far.ended(fetch := far.began("down", 0.0, SECOND), 0.0, 0)
    far.answered(fetch, 5.0, 0.0)
    for n in range(3):  # each begins while the answer to the previous one is under way
        far.began("up", n, SECOND)
    for n, each in enumerate(list(far._lanes["up"].active)):
        far.ended(each, n + 6.0, SECOND)
    assert far.rate("up", 20.0) == pytest.approx(1e9)


def test_a_shard_that_takes_long_to_answer_makes_the_link_seem_no_slower() -> None:
    meter = LinkMeter(0.0)
    for n in range(3):
        send(meter, n, n + 1, SECOND, "down")
    waiting = meter.began("down", 10.0, SECOND)
    assert meter.rate("down", 20.0) == pytest.approx(1e9)
    meter.answered(waiting, 10.0, 20.0)
    assert meter.rate("down", 40.0) == pytest.approx(1e8), "its bytes come slowly"

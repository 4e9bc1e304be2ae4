"""A unit's share of its link: how often it takes part in rounds, and how soon it considers the link changed."""

from __future__ import annotations

import pytest

from atoll_runtime.protocol.linkshare import LinkShare

P = 4
INTERVAL = 40.0
"""Seconds between two rounds of a fragment. Every 10 s a round of some fragment opens."""


def share(seconds: float, until: float = 2 * INTERVAL) -> LinkShare:
    """A link on which a contribution and a version take `seconds` each. Every fragment was sent once."""
    made = LinkShare(P)
    for step in range(int(until * P / INTERVAL)):
        made.asked(step % P, step, step * INTERVAL / P)
    for p in range(P):
        made.joined(p, until)
        made.pushed(p, seconds, 1.0)
        made.fetched(seconds, 1.0)
    return made


def taken(made: LinkShare, seconds: float, begin: float, rounds: int) -> list[bool]:
    """In which of the next rounds the unit takes part. Its transfers follow one another on the link."""
    found, free = [], begin
    for n in range(rounds):
        now = begin + n * INTERVAL / P
        made.asked(n % P, 1000 + n, now)
        found.append(made.ready(n % P, now, int(free > now), ()))
        if found[-1]:
            made.joined(n % P, now)
            free = max(now, free) + seconds
            made.pushed(n % P, seconds, 1.0)
            made.fetched(seconds, 1.0)
    return found


def test_an_idle_link_is_tried_after_the_time_that_a_contribution_is_expected_to_take() -> None:
    made = share(50.0)
    while made.ready(0, 80.0, 0, ()):
        made.joined(0, 80.0)
    assert not made.ready(0, 80.0 + 2 * 50.0 - 1.0, 0, (0,))
    assert made.ready(0, 80.0 + 2 * 50.0, 0, ())
    assert not made.ready(0, 80.0 + 2 * 50.0, 1, ())


@pytest.mark.parametrize(
    ("seconds", "round_trip", "found"),
    [(4.0, 0.0, 1), (4.0, 5.0, 2), (4.0, 15.0, 3), (50.0, 5.0, 1), (50.0, 60.0, 3)],
)
def test_as_many_transfers_run_at_once_as_a_round_trip_needs(seconds, round_trip, found) -> None:
    made = share(seconds)
    made.round_trip = round_trip
    assert made.beside == found


def test_what_is_expected_follows_the_codec() -> None:
    made = share(20.0)
    assert made.load == 2.0
    made.push_bits = made.fetch_bits = 0.25
    assert (made.load, made.seconds) == (0.5, 5.0)
    made.push_bits, made.fetch_bits = 0.25, 0.6
    assert made.load == pytest.approx(1.2), "the slower direction"


@pytest.mark.parametrize(("seconds", "period", "times"), [(4.0, 3.0, 3.0), (50.0, 3.0, 5.0)])
def test_a_period_is_the_most_rounds_that_a_unit_takes_part_in(
    seconds: float, period: float, times: float
) -> None:
    made = share(seconds)
    made.period = period
    found = taken(made, seconds, 100.0, 400)
    for p in range(P):
        assert sum(found[p::P]) == pytest.approx(100 / times, rel=0.1)


def test_a_pause_of_the_rounds_says_little_of_the_time_between_those_after_it() -> None:
    made = share(4.0)
    for p in range(P):
        made.asked(p, 100, 10_000.0 + p * INTERVAL / P)
    assert INTERVAL < made.interval < 2 * INTERVAL


def test_a_first_contribution_that_is_not_taken_tells_what_to_expect_of_the_next() -> None:
    made = LinkShare(P)
    made.missed(0, 0.5, 1.0)
    assert made.seconds == 0.0, "a refusal says nothing"
    made.missed(0, 90.0, 1.0)
    assert made.seconds == 180.0


@pytest.mark.parametrize(("seconds", "most"), [(2.0, 16), (4.0, 6), (8.0, 2), (10.0, 2)])
def test_as_many_wait_as_a_link_catches_up_with_before_the_fragment_is_due_again(seconds, most) -> None:
    """Of 10 s between two rounds. At least two."""
    made = share(seconds)
    assert [made.ready(0, 80.0, waiting, ()) for waiting in (most - 1, most)] == [True, False]


@pytest.mark.parametrize(
    ("fetch", "push", "interval"),
    [
        pytest.param(1.0, None, INTERVAL, id="a version was fetched, nothing was sent"),
        pytest.param(1.0, 290.0, 100 * INTERVAL, id="the last of them would be given up"),
    ],
)
def test_only_two_wait_on_a_link_that_is_not_known_to_send_more_in_time(
    fetch: float, push: float | None, interval: float
) -> None:
    made = LinkShare(P)
    for step in range(2 * P):
        made.asked(step % P, step, step * interval / P)
    made.fetched(fetch, 1.0)
    if push:
        made.pushed(0, push, 1.0)
    assert [made.ready(1, 2 * interval, waiting, ()) for waiting in (1, 2, 3)] == [True, False, False]


def test_contributions_that_waited_while_others_failed_leave_what_is_expected() -> None:
    made = share(4.0)
    made.missed(0, 40.0, 1.0)
    raised = made.seconds
    for p in range(1, P):
        made.missed(p, 0.0, 1.0, few=False)
    assert made.seconds == raised
    made.missed(0, 0.0, 1.0)
    assert made.seconds < raised, "the round did not wait for it"

"""A slow link's time is given to all fragments, and no more of it than there is."""

from __future__ import annotations

from collections import Counter

import pytest

from atoll_runtime.sync.linkshare import LinkShare

P, EVERY = 12, 5.0
"""Fragments, and seconds between two rounds."""
ROUNDS = 100 * P


@pytest.mark.parametrize("load", [0.6, 1.07, 1.6, 2.5, 4.0])
def test_a_link_takes_part_in_one_round_in_x_of_each_fragment(load: float) -> None:
    share, seconds, sent, joined = LinkShare(P), load * EVERY, [0.0], Counter[int]()
    for n in range(ROUNDS):
        now, p = n * EVERY, n % P
        share.asked(p, n, now)
        if share.ready(p, now, sum(end > now for end in sent), ()):
            share.joined(p, now)
            sent.append(max(sent[-1], now) + seconds)
            share.pushed(p, seconds)
            joined[p] += n >= 10 * P
    each = 90 / max(1.0, load)
    assert all(0.8 * each <= joined[p] <= 1.15 * each for p in range(P)), joined
    assert sum(joined.values()) >= 0.9 * P * each
    assert sent[-1] - ROUNDS * EVERY <= 2 * seconds


def test_a_link_that_was_thought_too_slow_is_measured_again() -> None:
    share = LinkShare(P)
    share.pushed(0, 100.0)
    for _ in range(20):
        share.missed(0, 0.0)
    assert share.seconds < 1.0


def test_of_a_link_on_which_a_contribution_came_too_late_more_is_expected() -> None:
    share = LinkShare(P)
    share.pushed(0, 1.0)
    share.missed(0, 3.0)
    assert share.seconds > 3.0


def test_nothing_is_held_back_before_anything_was_measured() -> None:
    share = LinkShare(P)
    share.asked(3, 3, 0.0)
    assert share.ready(3, 0.0, 0, range(P)) and share.load == 0.0

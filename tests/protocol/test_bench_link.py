"""`atoll bench link` at a small size: every case comes to its figures, with ends that are processes."""

from __future__ import annotations

import os

import pytest

from atoll_bench import link
from atoll_local.errors import HostError

pytestmark = pytest.mark.timeout(300)


def test_loopback_is_compared_with_plain_sockets_and_a_break_sends_little_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    promised = 0.02 * link.SIZE
    monkeypatch.setattr(link, "SIZE", 32 << 20)
    figure, broken = link.measure(("loopback", "break"), 4, 2)
    assert (figure.case, figure.streams) == ("loopback", link.SEVERAL)
    assert figure.ratio == min(figure.push_ratio or 0, figure.fetch_ratio or 0) > 0
    assert min(figure.one_stream_push_ratio or 0, figure.one_stream_fetch_ratio or 0) > 0
    # What a break loses was on its way: as many bytes of a short body as of a long one.
    assert broken.case == "break" and broken.resent_share is not None
    assert broken.resent_share * link.SIZE <= promised


def test_a_shaped_link_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="namespaces need root"):
        list(link.measure(("shaped",), 4, 1))

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
    monkeypatch.setattr(link, "SIZE", 32 << 20)
    one, several, broken = link.measure(("loopback", "break"), 4, 2)
    for figure, streams in ((one, 1), (several, link.SEVERAL)):
        assert (figure.case, figure.streams) == ("loopback", streams)
        assert figure.ratio == min(figure.push_ratio or 0, figure.fetch_ratio or 0) > 0
    assert broken.case == "break" and broken.resent_share is not None and broken.resent_share < 0.5


def test_a_shaped_link_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostError, match="namespaces need root"):
        list(link.measure(("shaped",), 4, 1))

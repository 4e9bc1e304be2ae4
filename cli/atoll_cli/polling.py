"""Polls a cluster, with back-off while it does not answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from atoll_cli.kubectl import KubectlError
from atoll_cli.text import seconds

INTERVAL = 2.0
"""Seconds between two polls."""
LONGEST = 30.0
"""Longest time in seconds between two polls of a cluster that does not answer."""
SILENCE = 900.0
"""Give up after this many seconds without an answer. An upgrade of a control plane takes minutes."""

Seen = TypeVar("Seen")


def poll(look: Callable[[], Seen], tell: Callable[[str], None]) -> Iterator[Seen]:
    """Yield the result of each poll, without end. Report once each time the cluster stops answering. Raises
    `KubectlError`: the first call of `look` failed, or later every call failed for `SILENCE` seconds."""
    yield look()
    while True:
        time.sleep(INTERVAL)
        yield patiently(look, tell, SILENCE)


def patiently(look: Callable[[], Seen], tell: Callable[[str], None], silence: float) -> Seen:
    """Return the first result of `look`. Raises `KubectlError` if every call failed for `silence` seconds."""
    began, failures = time.monotonic(), 0
    while True:
        try:
            return look()
        except KubectlError as error:
            if time.monotonic() - began > silence:
                raise
            failures += 1
            if failures == 1:
                tell(f"{error}; asking again for {seconds(silence)}")
            time.sleep(back_off(failures, random.random()))


def back_off(failures: int, chance: float) -> float:
    """Seconds until the next poll after this many failures; `chance` in [0, 1) reduces it by up to half."""
    return min(INTERVAL * 2.0 ** min(failures, 16), LONGEST) * (1 - chance / 2)

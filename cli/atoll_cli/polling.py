"""Looks at a cluster again and again, through hours in which it may fail to answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from atoll_cli.kubectl import KubectlError
from atoll_cli.text import seconds

INTERVAL = 2.0
"""Seconds between two looks."""
LONGEST = 30.0
"""Seconds between two looks at a cluster that does not answer, at most."""
SILENCE = 900.0
"""Seconds without an answer after which to give up: an upgrade of a control plane takes minutes."""

Seen = TypeVar("Seen")


def poll(
    look: Callable[[], Seen],
    tell: Callable[[str], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> Iterator[Seen]:
    """What each look saw, without an end; each time that the cluster falls silent is told once.

    Raises:
        KubectlError: the first look failed, or all of `SILENCE` seconds did.
    """
    yield look()
    answered, failures = clock(), 0
    while True:
        sleep(INTERVAL if not failures else back_off(failures, chance()))
        try:
            seen = look()
        except KubectlError as error:
            if clock() - answered > SILENCE:
                raise
            failures += 1
            if failures == 1:
                tell(f"{error}; asking again for {seconds(SILENCE)}")
        else:
            answered, failures = clock(), 0
            yield seen


def back_off(failures: int, chance: float) -> float:
    """Seconds until the next look after so many failures; `chance` in [0, 1) takes off up to a half."""
    return min(INTERVAL * 2.0 ** min(failures, 16), LONGEST) * (1 - chance / 2)

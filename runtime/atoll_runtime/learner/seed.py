"""From which global checkpoint an incarnation begins; the same one on every host of the unit."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass

import numpy as np

from atoll_runtime.checkpoint import Cut, GlobalStore, StoreError
from atoll_runtime.learner.agree import Agreement
from atoll_runtime.learner.errors import SeedUnavailable, Terminal
from atoll_runtime.sync.fragments import Layout

DEADLINE = 600.0
"""Seconds until a unit without a checkpoint gives up; the syncer may still be writing step 0."""
FIRST_WAIT = 0.5
LONGEST_WAIT = 8.0
NO_STEP = -1

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Seed:
    """A checkpoint and what is worth telling about its choice."""

    cut: Cut
    message: str


def find(store: GlobalStore, layout: Layout, agreement: Agreement, deadline: float = DEADLINE) -> Seed:
    """The newest complete checkpoint that every host can read, awaited with back-off.

    Raises:
        SeedUnavailable: there is none after `deadline` seconds; says what stood in the way.
        Terminal: the checkpoint is of another fragment layout.
    """
    end = time.monotonic() + deadline
    wait = FIRST_WAIT
    while True:
        cut, message = _newest(store)
        mine = NO_STEP if cut is None else cut.step
        late = time.monotonic() >= end
        low, high = agreement.extremes(np.array([mine, late], np.int32))
        common = int(low[0])
        if common > NO_STEP:
            if mine != common:
                cut = store.load(common, momentum=False)
                message = _join(message, f"step {common} chosen, which every host can read")
            assert cut is not None
            _check(cut, layout, store.uri)
            return Seed(cut, _join(f"seeded from step {cut.step}", message))
        if high[1]:
            raise SeedUnavailable(f"{store.uri}: no complete checkpoint in {deadline:g} s: {message}")
        log.info("waiting for a checkpoint: %s", message)
        time.sleep(wait * random.uniform(0.5, 1.5))
        wait = min(wait * 2, LONGEST_WAIT)


def _newest(store: GlobalStore) -> tuple[Cut | None, str]:
    try:
        cut, skipped = store.newest(momentum=False)
    except StoreError as error:
        return None, str(error)
    if cut is None and not skipped:
        return None, f"{store.uri} holds none yet"
    return cut, "; ".join(str(one) for one in skipped)


def _check(cut: Cut, layout: Layout, uri: str) -> None:
    found = cut.meta.get("fingerprint")
    if found != layout.fingerprint:
        raise Terminal(
            "LayoutChanged",
            f"{uri}: step {cut.step} has the fragment layout {found!r}, this run {layout.fingerprint!r}: "
            "model and outer.fragments must stay as they were",
        )


def _join(*parts: str) -> str:
    return "; ".join(part for part in parts if part)

"""Supervises the watches of one cluster: starts kopf again whenever it ends, and finds what was deleted meanwhile.

kopf ends after a stream ERROR other than 410, and does not report an object that was deleted while it was not watching.
Therefore each of its lists is compared with what is known, and so is a list of metadata at each resync.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time

from atoll_operator.kube.errors import ApiError, Refused, Unreachable
from atoll_operator.kube.events import WATCH_SECONDS, KopfThread
from atoll_operator.kube.feed import Feed
from atoll_operator.kube.gather import back_off
from atoll_operator.kube.logs import tell

BACK_OFF = 0.25, 1.0
"""Seconds until kopf is started again, at first and at most."""
SILENT_SECONDS = WATCH_SECONDS + 20.0
"""kopf is started again when it has not asked for a collection for this long: its loop hangs, a connection is dead, or
the kind was not served yet when it started."""
STEADY_SECONDS = 30.0
"""After a run of this length kopf is started again without a growing back-off."""


async def watch(feed: Feed, resync_seconds: float) -> None:
    """Watches until cancelled, and lists each collection again after `resync_seconds`."""
    async with asyncio.TaskGroup() as group:
        group.create_task(_run_kopf(feed), name="watches")
        group.create_task(_resync(feed, resync_seconds), name="resync of watches")


async def _run_kopf(feed: Feed) -> None:
    failures = 0
    while True:
        kopf, started = KopfThread(feed), time.monotonic()
        try:
            reason = await _end_of(kopf)
        finally:
            kopf.stop()
        failures = 1 if time.monotonic() - started > STEADY_SECONDS else failures + 1
        wait = back_off(failures, *BACK_OFF)
        problem = "the watches ended; starts them again"
        tell(logging.WARNING, problem, error=reason, seconds=round(wait, 2))
        await asyncio.sleep(wait)


async def _end_of(kopf: KopfThread) -> str:
    """Waits until kopf has ended, or needs to be started again; returns the reason."""
    while not (await asyncio.wait([kopf.ended], timeout=1.0))[0]:
        since = time.monotonic() - SILENT_SECONDS
        if silent := [path for path, asked in kopf.session.asked.copy().items() if asked < since]:
            return f"has not asked for {', '.join(sorted(silent))} for {SILENT_SECONDS:g} s"
    return kopf.ended.result()


async def _resync(feed: Feed, seconds: float) -> None:
    while True:
        await asyncio.sleep(seconds * random.uniform(0.9, 1.1))
        for path, each in feed.watches.items():
            try:
                listed = await feed.client.list(each.kind, each.namespace, each.selector, metadata=True)
            except (ApiError, Unreachable) as error:
                feed.outcome(path, str(error), isinstance(error, Refused))
            else:
                feed.outcome(path)
                feed.listed(each, *listed)

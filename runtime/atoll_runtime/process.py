"""How a pod's process ends: by SIGTERM, or with a reason that Kubernetes reads."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable
from pathlib import Path

from atoll_runtime.contract import TERMINATION_LOG

log = logging.getLogger("atoll")


class Terminal(Exception):
    """Ends the process for good: a restart does not help. `reason` is CamelCase, the message is for the user."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def log_to_stderr() -> None:
    """Sets up logging for the whole process."""
    # `force`, because a library imported earlier may have set its own handler.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax logs twenty lines for each save


def asked_to_end() -> asyncio.Event:
    """Returns an event that SIGTERM and SIGINT set."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def until(ended: asyncio.Event, work: Awaitable[None]) -> None:
    """Waits until `work` ends or `ended` is set. Then cancels `work` if it still runs, or raises its failure."""
    working, end = asyncio.ensure_future(work), asyncio.create_task(ended.wait())
    await asyncio.wait({working, end}, return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
    if not working.cancelled():
        working.result()


def fail(status: int, reason: str, error: Exception) -> int:
    """Logs `Reason: message`, and writes it to the termination log, which exists only in a pod. Returns `status`."""
    text = f"{reason}: {error}"
    log.error("%s", text)
    place = Path(TERMINATION_LOG)
    if place.exists():
        place.write_text(text[:4000])
    return status

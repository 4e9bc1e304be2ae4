"""How a process of a pod ends: by SIGTERM, or with a reason where Kubernetes reads it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable
from pathlib import Path

from atoll_runtime.contract import TERMINATION_LOG

log = logging.getLogger("atoll")


def log_to_stderr() -> None:
    """For the whole process."""
    # `force`: a library that was imported before may have set a handler of its own.
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax tells of each save in twenty lines


def asked_to_end() -> asyncio.Event:
    """Set by SIGTERM and SIGINT."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended


async def until(ended: asyncio.Event, work: Awaitable[None]) -> None:
    """Waits until `work` fails or `ended` is set; what is left of the work is then cancelled."""
    working, end = asyncio.ensure_future(work), asyncio.create_task(ended.wait())
    await asyncio.wait({working, end}, return_when=asyncio.FIRST_COMPLETED)
    end.cancel()
    if not working.done():
        working.cancel()
        await asyncio.wait({working})
    if not working.cancelled():
        working.result()


def fail(status: int, reason: str, error: Exception) -> int:
    """Leaves `Reason: message` where Kubernetes reads it, which is there in a pod only."""
    text = f"{reason}: {error}"
    log.error("%s", text)
    place = Path(TERMINATION_LOG)
    if place.exists():
        place.write_text(text[:4000])
    return status

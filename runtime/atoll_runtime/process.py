"""How a pod's process begins and ends: what the operator asks of it, SIGTERM, and a reason that Kubernetes reads."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from atoll_runtime.contract import (
    ENV_RUN_FILE,
    EXIT_TERMINAL,
    EXIT_VERSION,
    RUN_FILE,
    TERMINATION_LOG,
    VERSION_MISMATCH,
    RunContract,
    VersionMismatch,
    parse_run,
)
from atoll_runtime.transport.tls import TlsError

Contract = TypeVar("Contract")
EXIT_RETRY = 1

log = logging.getLogger("atoll")


class Terminal(Exception):
    """Ends the process for good: a restart does not help. `reason` is CamelCase, the message is for the user."""

    status = EXIT_TERMINAL

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def run_contract() -> RunContract:
    """The run's contract, from its file. Raises `Terminal` or `VersionMismatch`."""
    path = Path(os.environ.get(ENV_RUN_FILE, RUN_FILE))
    try:
        return parse_run(path.read_bytes())
    except OSError as error:
        raise Terminal("ContractInvalid", f"{path}: {error}") from error


def own_contract(variable: str, parse: Callable[[str], Contract]) -> Contract:
    """This pod's contract, from its environment. Raises `Terminal` or `VersionMismatch`."""
    try:
        return parse(os.environ[variable])
    except KeyError as error:
        raise Terminal("ContractInvalid", f"${variable} is not set") from error


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


def outcome(error: Exception) -> tuple[int, str]:
    """Exit status and reason of a process that `error` ended. Logs the trace of one that nobody expected."""
    status, reason = EXIT_RETRY, type(error).__name__
    if isinstance(error, Terminal):
        status, reason = error.status, error.reason
    elif isinstance(error, VersionMismatch):
        status, reason = EXIT_VERSION, VERSION_MISMATCH
    elif isinstance(error, TlsError):  # the files may be changing at this moment
        reason = "CertificateUnreadable"
    else:
        log.error("unexpected", exc_info=error)
    return status, reason


def fail(status: int, reason: str, error: Exception) -> int:
    """Logs `Reason: message`, and writes it to the termination log, which exists only in a pod. Returns `status`."""
    text = f"{reason}: {error}"
    log.error("%s", text)
    place = Path(TERMINATION_LOG)
    with suppress(OSError):  # a full disk must not take the status
        if place.exists():
            place.write_text(text[:4000])
    return status


def leave(status: int) -> NoReturn:
    """Ends the process without the interpreter's exit, which waits for threads: one may wait for a bucket, a program
    of JAX, or hosts that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

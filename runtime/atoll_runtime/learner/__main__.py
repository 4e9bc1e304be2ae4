"""`python -m atoll_runtime.learner`: one host of a unit, as its pod starts it."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    # Imports and traces of a start make no garbage, and looking for it took half a CPU second. `island` turns it on.
    gc.disable()

import logging
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from atoll_runtime.contract import (
    ENV_INCARNATION_FILE,
    ENV_TLS_DIR,
    ENV_UNIT,
    EXIT_OK,
    INCARNATION_FILE,
    TERMINATION_LOG,
    TLS_DIR,
    parse_unit,
)
from atoll_runtime.learner import lockedmemory
from atoll_runtime.learner.incarnation import MEMORY_FILE, Files, Incarnation, NotRestarted
from atoll_runtime.learner.island import train
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.process import EXIT_RETRY, leave, log_to_stderr, outcome, own_contract, run_contract
from atoll_runtime.transport.tls import Tls

EXIT_TERMINATED = 128 + signal.SIGTERM

log = logging.getLogger("atoll.learner")


def main() -> int:
    """Runs until the end; returns the exit status that tells the operator why."""
    log_to_stderr()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))  # nothing to leave behind yet
    told = Path(os.environ.get(ENV_INCARNATION_FILE, INCARNATION_FILE))
    incarnation = Incarnation(Files(told, Path(MEMORY_FILE), Path(TERMINATION_LOG)))
    try:
        first = own_contract(ENV_UNIT, parse_unit)
        os.environ.update(first.host_lists())  # libtpu reads them when it starts
        unit = incarnation.claim(first)
        run = run_contract()  # after the wait, during which the other hosts' file may change too
        incarnation.watch()
        lockedmemory.raise_limit(os.environ)
        tls = Tls(os.environ.get(ENV_TLS_DIR, TLS_DIR))
        ending = train(run, unit, tls, _leave_cleanly)
    except NotRestarted as error:
        log.error("%s", error)  # the predecessor's last words also stand for this process
        return EXIT_RETRY
    except Exception as error:
        status, reason = outcome(error)
        log.error("%s: %s", reason, error)
        with suppress(OSError):  # a full disk must not take the status
            incarnation.leave(f"{reason}: {error}")
        return status
    return EXIT_OK if ending is Ending.STOPPED else EXIT_TERMINATED


def _leave_cleanly() -> threading.Event:
    """From now on SIGTERM sets the returned event, so that the loop ends at a step on all hosts of the unit."""
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    return terminated


if __name__ == "__main__":
    leave(main())

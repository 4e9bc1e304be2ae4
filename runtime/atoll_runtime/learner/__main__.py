"""`python -m atoll_runtime.learner`: one host of a unit, as its pod starts it."""

from __future__ import annotations

import gc

if __name__ == "__main__":
    # Imports and traces of a start make no garbage, and looking for it took half a CPU second. `island` turns it on.
    gc.disable()

import logging
import os
import signal
import sys
import threading
from pathlib import Path

from atoll_runtime.contract import (
    ENV_INCARNATION_FILE,
    ENV_RUN_FILE,
    ENV_TLS_DIR,
    ENV_UNIT,
    EXIT_FENCED,
    EXIT_OK,
    EXIT_TERMINAL,
    EXIT_VERSION,
    INCARNATION_FILE,
    RUN_FILE,
    TERMINATION_LOG,
    TLS_DIR,
    VERSION_MISMATCH,
    RunContract,
    UnitContract,
    VersionMismatch,
    parse_run,
    parse_unit,
)
from atoll_runtime.learner import lockedmemory
from atoll_runtime.learner.incarnation import MEMORY_FILE, Files, Incarnation, NotRestarted
from atoll_runtime.learner.island import FencedOff, train
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.process import Terminal, log_to_stderr
from atoll_runtime.transport.tls import Tls, TlsError

EXIT_RETRY = 1
EXIT_TERMINATED = 128 + signal.SIGTERM

log = logging.getLogger("atoll.learner")


def main() -> int:
    """Runs until the end; returns the exit status that tells the operator why."""
    log_to_stderr()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(EXIT_TERMINATED))  # nothing to leave behind yet
    told = Path(os.environ.get(ENV_INCARNATION_FILE, INCARNATION_FILE))
    incarnation = Incarnation(Files(told, Path(MEMORY_FILE), Path(TERMINATION_LOG)))
    try:
        run, first = _contracts()
        os.environ.update(first.host_lists())  # libtpu reads them when it starts
        unit = incarnation.claim(first)
        incarnation.watch()
        lockedmemory.raise_limit(os.environ)
        tls = Tls(os.environ.get(ENV_TLS_DIR, TLS_DIR))
        ending = train(run, unit, tls, _leave_cleanly)
    except NotRestarted as error:
        log.error("%s", error)  # the predecessor's last words also stand for this process
        return EXIT_RETRY
    except Terminal as error:
        return _fail(incarnation, EXIT_TERMINAL, error.reason, error)
    except VersionMismatch as error:
        return _fail(incarnation, EXIT_VERSION, VERSION_MISMATCH, error)
    except FencedOff as error:
        return _fail(incarnation, EXIT_FENCED, "Fenced", error)
    except TlsError as error:  # the files may be changing at this moment
        return _fail(incarnation, EXIT_RETRY, "CertificateUnreadable", error)
    except Exception as error:
        log.exception("unit failed")
        return _fail(incarnation, EXIT_RETRY, type(error).__name__, error)
    return EXIT_OK if ending is Ending.STOPPED else EXIT_TERMINATED


def _leave_cleanly() -> threading.Event:
    """From now on SIGTERM sets the returned event, so that the loop ends at a step on all hosts of the unit."""
    terminated = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: terminated.set())
    return terminated


def _contracts() -> tuple[RunContract, UnitContract]:
    file = Path(os.environ.get(ENV_RUN_FILE, RUN_FILE))
    try:
        return parse_run(file.read_text()), parse_unit(os.environ[ENV_UNIT])
    except (OSError, KeyError) as error:
        raise Terminal("ContractInvalid", f"{file} or ${ENV_UNIT}: {error}") from error


def _fail(incarnation: Incarnation, status: int, reason: str, error: Exception) -> int:
    text = f"{reason}: {error}"
    log.error("%s", text)
    incarnation.leave(text)
    return status


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # After a failure, jax.distributed's own exit would wait for hosts that may be gone, and then abort.
    os._exit(status)

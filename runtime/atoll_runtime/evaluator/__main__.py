"""`python -m atoll_runtime.evaluator`: evaluates a run's checkpoints, as its pod starts it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from pathlib import Path

from atoll_runtime.checkpoint import GlobalStore, StoreError
from atoll_runtime.contract import (
    ENV_EVALUATION,
    ENV_RUN_FILE,
    ENV_TLS_DIR,
    EXIT_OK,
    EXIT_TERMINAL,
    EXIT_VERSION,
    RUN_FILE,
    TLS_DIR,
    VERSION_MISMATCH,
    EvaluationContract,
    EvaluatorStatus,
    RunContract,
    VersionMismatch,
    parse_evaluation,
    parse_run,
)
from atoll_runtime.data import DataError, Reader
from atoll_runtime.evaluator.follower import FIRST_WAIT, LONGEST_WAIT, Follower
from atoll_runtime.evaluator.measure import Measure
from atoll_runtime.evaluator.results import Measured, Results
from atoll_runtime.evaluator.status import StatusServer
from atoll_runtime.model import ModelError
from atoll_runtime.process import asked_to_end, fail, log_to_stderr, until
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.transport.tls import Tls, TlsError

EXIT_RETRY = 1

log = logging.getLogger("atoll.evaluator")


class ContractInvalid(Exception):
    """The operator's instructions cannot be read; the message names the field."""


ENDS: dict[type[Exception], tuple[int, str]] = {
    ContractInvalid: (EXIT_TERMINAL, "ContractInvalid"),
    VersionMismatch: (EXIT_VERSION, VERSION_MISMATCH),
    ModelError: (EXIT_TERMINAL, "ModelInvalid"),
    DataError: (EXIT_TERMINAL, "DataInvalid"),
    TlsError: (EXIT_RETRY, "CertificateUnreadable"),
    OSError: (EXIT_RETRY, "PortUnavailable"),
}
"""Exit status and reason of each error."""


class Work:
    """The thread that evaluates. Its failure is reported on the event loop."""

    def __init__(self, run: RunContract, spec: EvaluationContract) -> None:
        self._run, self._spec = run, spec
        self._follower: Follower | None = None
        self._message = "reads the data set"
        self._stop = threading.Event()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def start(self) -> None:
        """Starts a daemon thread: a running program cannot be interrupted, and the process does not wait for it."""
        threading.Thread(target=self._work, name="evaluate", daemon=True).start()

    def stop(self) -> None:
        """Ends the thread after the checkpoint that is being evaluated."""
        self._stop.set()

    def report(self) -> EvaluatorStatus:
        if self._follower is not None:
            return self._follower.report()
        return EvaluatorStatus(run_uid=self._run.uid, phase="Starting", message=self._message)

    def _work(self) -> None:
        try:
            self._follower = self._follower_or_none()
            if self._follower is not None:
                self._follower.follow(self._stop)
        except Exception as error:
            self._loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(error)

    def _follower_or_none(self) -> Follower | None:
        """Waits for the bucket; None if it was stopped before the bucket answered."""
        run, spec = self._run, self._spec
        length = spec.sequence_length or run.data.sequence_length
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while not self._stop.is_set():
            try:
                store = GlobalStore(run.checkpoint.uri)
                reader = Reader(run.data.uri, spec.split, length)
            except StoreError as error:
                self._message = f"the bucket cannot be used yet: {error}"
                log.warning("%s", self._message)
                self._stop.wait(backoff.seconds())
                continue
            measure = Measure(run.model, reader, length, spec.tokens, run.data.packing)
            measured = Measured.by(run.data, spec, reader.catalogue.splits[spec.split])
            return Follower(run.uid, spec.split, store, Results(store.bucket, measured), measure)
        return None


async def serve(run: RunContract, spec: EvaluationContract, tls: Tls) -> None:
    """Evaluates until SIGTERM or a failure. Serves the status from the start."""
    ended = asked_to_end()
    work = Work(run, spec)
    web = StatusServer(work.report, tls.server_context(), spec)
    await web.start()
    try:
        work.start()
        await until(ended, work.ended)
    finally:
        work.stop()
        await web.stop()


def contract() -> tuple[RunContract, EvaluationContract]:
    """Raises `ContractInvalid` or `VersionMismatch`."""
    path = Path(os.environ.get(ENV_RUN_FILE, RUN_FILE))
    try:
        return parse_run(path.read_bytes()), parse_evaluation(os.environ[ENV_EVALUATION])
    except (OSError, KeyError) as error:
        raise ContractInvalid(f"{path} or ${ENV_EVALUATION}: {error}") from error


def main() -> int:
    """Serves until SIGTERM. After a failure the termination message has the reason."""
    log_to_stderr()
    try:
        run, spec = contract()
        asyncio.run(serve(run, spec, Tls.read(os.environ.get(ENV_TLS_DIR, TLS_DIR))))
    except tuple(ENDS) as error:
        status, reason = next(end for kind, end in ENDS.items() if isinstance(error, kind))
        return fail(status, reason, error)
    except Exception as error:  # a user's task may raise anything
        log.exception("the evaluation failed")
        return fail(EXIT_RETRY, type(error).__name__, error)
    return EXIT_OK


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the interpreter's own exit would close JAX while a program runs

"""`python -m atoll_runtime.evaluator`: evaluates a run's checkpoints, as its pod starts it."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future

from atoll_runtime.checkpoint import GlobalStore, arrays
from atoll_runtime.contract import (
    ENV_EVALUATION,
    ENV_TLS_DIR,
    EXIT_OK,
    EXIT_TERMINAL,
    TLS_DIR,
    EvaluationContract,
    EvaluatorStatus,
    RunContract,
    parse_evaluation,
)
from atoll_runtime.data import DataError, Reader
from atoll_runtime.evaluator.follower import Follower, Parts
from atoll_runtime.evaluator.measure import Measure
from atoll_runtime.evaluator.results import Results, settings
from atoll_runtime.model import ModelError
from atoll_runtime.process import (
    EXIT_RETRY,
    asked_to_end,
    fail,
    leave,
    log_to_stderr,
    outcome,
    own_contract,
    run_contract,
    until,
)
from atoll_runtime.transport.tls import Tls
from atoll_runtime.transport.web import WebServer, prometheus

READY = ("Waiting", "Evaluating")
"""Phases in which the pod is ready."""
PREFIX = "atoll_evaluator"
"""Of its metrics."""


def begin(run: RunContract, spec: EvaluationContract) -> Parts:
    """Makes a follower's parts. Raises `StoreError` while the bucket cannot be used; `DataError`, `ModelError`."""
    store = GlobalStore(run.checkpoint.uri)
    length = spec.sequence_length or run.data.sequence_length
    reader = Reader(run.data.uri, spec.split, length)
    measured = settings(run.data, spec, reader.catalogue.splits[spec.split])
    measure = Measure(run.model, reader, length, spec.tokens, run.data.packing)
    return store, Results(store.bucket, measured), measure


async def serve(run: RunContract, spec: EvaluationContract, tls: Tls) -> None:
    """Evaluates until SIGTERM or a failure. Serves the status from the start."""
    ended, stop = asked_to_end(), threading.Event()
    failed: Future[None] = Future()
    follower = Follower(run.uid, spec.split, lambda: begin(run, spec))

    def work() -> None:
        try:
            follower.follow(stop)
        except Exception as error:
            failed.set_exception(error)

    context, ports = tls.server_context(), (spec.status_port, spec.health_port)
    web = WebServer(follower.report, READY, metrics, context, *ports, arrays.stuck)
    await web.start()
    try:
        # A daemon, so that the process does not wait for it: a running program cannot be interrupted.
        threading.Thread(target=work, name="evaluate", daemon=True).start()
        await until(ended, asyncio.wrap_future(failed))
    finally:
        stop.set()
        await web.stop()


def metrics(report: EvaluatorStatus) -> str:
    """The report as Prometheus text. The pod's labels name the run."""
    figures: dict[str, float] = {"checkpoints": report.evaluated, "skipped_total": report.skipped}
    lines = []
    if (newest := report.newest) is not None:
        figures |= {"global_step": newest.step, "tokens": newest.tokens, "seconds": newest.seconds}
        value = "NaN" if newest.loss is None else newest.loss
        lines += [f"# TYPE {PREFIX}_loss gauge", f'{PREFIX}_loss{{split="{newest.split}"}} {value}']
    return "\n".join([*lines, *prometheus(PREFIX, figures)]) + "\n"


def main() -> int:
    """Serves until SIGTERM. After a failure, the termination message gives the reason."""
    log_to_stderr()
    try:
        run, spec = run_contract(), own_contract(ENV_EVALUATION, parse_evaluation)
        asyncio.run(serve(run, spec, Tls(os.environ.get(ENV_TLS_DIR, TLS_DIR))))
    except ModelError as error:
        return fail(EXIT_TERMINAL, "ModelInvalid", error)
    except DataError as error:
        return fail(EXIT_TERMINAL, "DataInvalid", error)
    except OSError as error:
        return fail(EXIT_RETRY, "PortUnavailable", error)
    except Exception as error:  # a user's task may raise anything
        return fail(*outcome(error), error)
    return EXIT_OK


if __name__ == "__main__":
    leave(main())

"""Evaluates each complete global checkpoint of a run once, beginning with the newest."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import numpy as np

from atoll_runtime.checkpoint import Damaged, GlobalStore, StoreError
from atoll_runtime.contract import EvaluationReport, EvaluatorStatus
from atoll_runtime.evaluator.measure import Loss, WrongTensors
from atoll_runtime.evaluator.results import Results
from atoll_runtime.syncer.backoff import Backoff

POLL_SECONDS = 5.0
"""Seconds between two listings of the checkpoints while there is nothing to evaluate."""
FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
"""Shortest and longest seconds between attempts while the bucket cannot be used."""
RETRY_SECONDS = 300.0
"""Seconds before a checkpoint that could not be evaluated is tried again."""

log = logging.getLogger("atoll.evaluator")

Parts = tuple[GlobalStore, Results, Callable[[Mapping[str, np.ndarray]], Loss]]
"""The checkpoints, the results, and a function that measures parameters by flat name."""


class Follower:
    """Evaluates in one thread. `report` may be called from any thread.

    Args:
        begin: makes the parts that it works with. Raises `StoreError` while the bucket cannot be used.
    """

    def __init__(
        self, run_uid: str, split: str, begin: Callable[[], Parts], clock: Callable[[], float] = time.time
    ) -> None:
        self._run_uid, self._split, self._begin, self._clock = run_uid, split, begin, clock
        self._parts: Parts | None = None
        self._known: dict[int, EvaluationReport] | None = None
        """Results by step. None until the bucket has been read."""
        self._waiting: set[int] = set()
        """Checkpoints without a result at the last listing."""
        self._failures: dict[int, tuple[float, str]] = {}
        """By step, when to try again in Unix seconds, and why it could not be evaluated."""
        self._skipped = 0
        self._status = EvaluatorStatus(run_uid=run_uid, phase="Starting", message="reads the bucket")

    def report(self) -> EvaluatorStatus:
        """The current status; callable at any time."""
        return self._status

    def follow(self, stop: threading.Event) -> None:
        """Evaluates until `stop` is set. Retries while the bucket cannot be used. Raises `DataError` for an unusable
        data set."""
        backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        while not stop.is_set():
            try:
                worked = self.advance()
            except StoreError as error:
                log.warning("%s", error)
                self._set_status("Waiting", "waits for the bucket", str(error))
                stop.wait(backoff.seconds())
                continue
            backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
            if not worked:
                stop.wait(POLL_SECONDS * random.uniform(0.9, 1.1))

    def advance(self) -> bool:
        """Evaluates one checkpoint. Returns False if there is none to evaluate. Raises `StoreError` or `DataError` if
        bucket or data set cannot be used."""
        self._parts = self._parts or self._begin()
        store, results, measure = self._parts
        steps = store.steps()
        known = self._known = self._update(steps, results)
        failures = {step: self._failures.get(step, (0.0, "")) for step in steps}
        error = failures[steps[0]][1] if steps else ""
        due = (step for step, (again, _) in failures.items() if again <= self._clock())
        step = next((step for step in due if step not in known), None)
        if step is None:
            self._set_status("Waiting", "waits for a checkpoint", error)
            return False
        self._set_status("Evaluating", f"evaluates the checkpoint of global step {step}", error)
        began = self._clock()
        try:
            completed = results.completed(step)
            loss = measure(store.load(step, momentum=False).theta)
        except (Damaged, WrongTensors) as wrong:
            message = f"global step {step} is not evaluated: {wrong}"
            self._failures[step] = self._clock() + RETRY_SECONDS, message
            log.warning("%s", message)
            return True
        result = EvaluationReport(
            step=step,
            loss=loss.nats if math.isfinite(loss.nats) else None,
            tokens=loss.tokens,
            split=self._split,
            seconds=round(self._clock() - began, 3),
            time=self._clock(),
        )
        results.save(result, completed)
        known[step] = result
        self._waiting.discard(step)
        self._failures.pop(step, None)
        log.info("global step %d: %.4f nats per token on %d tokens", step, loss.nats, loss.tokens)
        return True

    def _update(self, steps: Iterable[int], results: Results) -> dict[int, EvaluationReport]:
        """Results of the present checkpoints. Checkpoints removed before they were evaluated count as skipped."""
        there = set(steps)
        if self._known is None:
            known = results.load(there)
        else:
            known = {step: each for step, each in self._known.items() if step in there}
            if known and not results.load([newest := max(known)]):
                del known[newest]  # another checkpoint has taken its place
        self._skipped += len(self._waiting - there)
        self._waiting = there - known.keys()
        self._failures = {step: each for step, each in self._failures.items() if step in there}
        if self._known is None or len(known) < len(self._known):
            results.prune(there)  # last, so that a retry after an error does not count anything twice
        return known

    def _set_status(self, phase: Literal["Waiting", "Evaluating"], message: str, error: str) -> None:
        known = self._known or {}
        self._status = EvaluatorStatus(
            run_uid=self._run_uid,
            phase=phase,
            message=message,
            error=error,
            newest=known[max(known)] if known else None,
            evaluated=len(known),
            skipped=self._skipped,
        )

"""The inner loop: agree, extract, apply what arrived, step, send, report. It never waits for the network.

A pull that comes during a step is answered when that step ends, for a round gives a unit one step's grace at
most. So the hosts agree between two steps, and the devices stand still for it (a collective of some hundred
bytes); the copy of an extracted fragment to the host goes on beneath the next step.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass

from jax import Array

from atoll_runtime.contract import RunContract
from atoll_runtime.data import Prefetch
from atoll_runtime.learner.agree import Agreement
from atoll_runtime.learner.errors import LossNotFinite
from atoll_runtime.learner.exchange import Arrival, Exchange
from atoll_runtime.learner.fragments import Fragments, host_part
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.proposal import Ending, Proposal
from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.transport.messages import Fenced, Pull

DATA_TIMEOUT = 120.0
"""Seconds that a step waits for its batch: longer than the reader's own attempts."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where an incarnation begins."""

    versions: tuple[int, ...]
    """Of each fragment held."""
    targets: tuple[int, ...]
    """Of each fragment to be held before it is contributed."""
    global_step: int = 0
    inner_step: int = 0
    cursor: int = 0
    """Sequences of the unit's stream that are consumed."""


@dataclass(slots=True)
class Counter:
    """Of one fragment, since it was last received."""

    version: int
    steps: int = 0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Parcel:
    """An extracted fragment on its way to the host."""

    pull: Pull
    delta: Array
    steps: int
    tokens: int
    anchor: int


@dataclass
class Loop:
    """One host's part of the unit's training."""

    run: RunContract
    inner: Inner
    fragments: Fragments
    exchange: Exchange
    agreement: Agreement
    batches: Prefetch
    start: Start
    terminated: threading.Event

    def __post_init__(self) -> None:
        self.counters = [Counter(version) for version in self.start.versions]
        self.step = self.start.inner_step
        self._cursor = self.start.cursor
        self._seen = self.start.global_step, self.step
        self._finished: float | None = None
        self._unreported = 0

    def until_end(self) -> Ending:
        """Trains until the syncer's clock stops it, or this unit must end.

        Raises:
            LossNotFinite: nothing computed from the bad step on has been handed to the syncer.
            DataError, StoreError, TimeoutError: the training data does not come.
        """
        arrivals: dict[int, Arrival] = {}
        while True:
            arrivals.update(self.exchange.arrived())
            offer = Proposal(arrivals, self.exchange.pulls(), self._ending())
            agreed = offer.agreed(*self.agreement.extremes(offer.values(len(self.counters))))
            if agreed.ending is not Ending.NONE:
                return agreed.ending
            parcels = self._extract(agreed.pulls)
            self._receive(agreed.arrivals)
            for number in agreed.arrivals:
                del arrivals[number]
            batch = self.batches.take(DATA_TIMEOUT)
            loss = self.inner.step(batch.tokens, self._rate())
            self._send(parcels)
            self._finish(float(loss), batch.cursor)

    def _ending(self) -> Ending:
        error = self.exchange.error()
        if error is not None:
            return Ending.FENCED if isinstance(error, Fenced) else Ending.REFUSED
        if self.terminated.is_set():
            return Ending.TERMINATED
        return Ending.STOPPED if self.exchange.stop() is not None else Ending.NONE

    def _extract(self, pulls: dict[int, Pull]) -> list[Parcel]:
        """Starts the pulled fragments' way to the host.

        A fragment that has made no step yet, or is still behind the version that start or round ask for, stays
        where it is: its round may be open yet when it has caught up.
        """
        parcels = []
        for number, pull in pulls.items():
            counter = self.counters[number]
            if counter.steps == 0 or counter.version < max(self.start.targets[number], pull.least):
                continue
            delta = self.fragments.extract(self.inner.theta, number)
            parcels.append(Parcel(pull, delta, counter.steps, counter.tokens, counter.version))
        return parcels

    def _receive(self, arrivals: dict[int, Arrival]) -> None:
        """Overwrites fragments (α = 0); AdamW's moments stay, the fragment's counters start again."""
        for number, arrival in arrivals.items():
            self.inner.theta = self.fragments.receive(self.inner.theta, number, arrival.part)
            self.counters[number] = Counter(arrival.version)
            if arrival.version > self._seen[0]:
                self._seen = arrival.version, self.step

    def _rate(self) -> float:
        """Learning rate by the newest global step seen and the steps since, at most an interval of them."""
        newest, since = self._seen
        return learning_rate(
            self.run.inner,
            self.run.target.global_steps,
            newest + min(self.step - since, self.run.outer.interval),
            self.step - self.start.inner_step,
            healed=self.start.global_step > 0,
        )

    def _send(self, parcels: list[Parcel]) -> None:
        """Hands this host's parts to the exchange, beneath the step that is under way."""
        for parcel in parcels:
            part = host_part(parcel.delta)
            self.exchange.contribute(
                parcel.pull, part, parcel.steps, parcel.tokens, parcel.anchor, self._cursor
            )

    def _finish(self, loss: float, cursor: int) -> None:
        """Counts and reports a step that has ended."""
        self.step += 1
        if not math.isfinite(loss):
            raise LossNotFinite(self.step, loss)
        self._cursor = cursor
        for counter in self.counters:
            counter.steps += 1
            counter.tokens += self.inner.tokens
        now = time.monotonic()
        self._unreported += self.inner.tokens
        if (
            self._finished is not None
        ):  # the first step took the compiler's time; its tokens go with the second
            self.exchange.report(self.step, self._unreported, loss, now - self._finished, cursor)
            self._unreported = 0
        self._finished = now

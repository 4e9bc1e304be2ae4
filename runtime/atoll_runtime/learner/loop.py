"""The inner loop: agree, record, extract, apply what arrived, step, send, report. It never waits for the network.

A pull that comes during a step is answered when that step ends, because by default the grace window of a round is
one step at most. So the hosts agree between two steps, and the devices are idle meanwhile (a collective of some
hundred bytes). The copy of an extracted fragment to the host continues during the next step.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from atoll_runtime.contract import RunContract
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.proposal import NOTHING, WHOLE, Ending, StepProposal
from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.learner.snapshot import Snapshots, host_part
from atoll_runtime.learner.start import Start
from atoll_runtime.learner.transfers import Arrival
from atoll_runtime.process import Terminal
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.protocol.progress import Contribution, Progress
from atoll_runtime.protocol.shardview import PullRequest
from atoll_runtime.transport.messages import Fenced, Refused

if TYPE_CHECKING:  # simulations run without JAX
    from jax import Array

    from atoll_runtime.data.prefetch import HostBatch
    from atoll_runtime.learner.audit import Audit
    from atoll_runtime.learner.fragments import Fragments
    from atoll_runtime.learner.host_consensus import Agreement
    from atoll_runtime.learner.inner import Inner

DATA_TIMEOUT = 120.0
"""Seconds that a step waits for its batch: longer than all the reader's attempts at a block, 100 s at worst."""


class LossNotFinite(Terminal):
    """The training loss is NaN or infinite, so nothing more of this unit may be merged."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__("LossNotFinite", f"loss {loss} at inner step {step}")


@dataclass(frozen=True, slots=True)
class PendingPush:
    """An extracted fragment on its way to the host."""

    number: int
    ask: PullRequest
    codec: str
    delta: Array
    offer: Contribution


class Batches(Protocol):
    """Where a host's rows come from, in order."""

    def take(self, timeout: float) -> HostBatch:
        """The next batch; raises what the reader raised, or `TimeoutError` after `timeout` seconds."""


@dataclass
class Loop:
    """One host's part of the unit's training."""

    run: RunContract
    inner: Inner
    fragments: Fragments
    client: SyncerClient
    agreement: Agreement
    batches: Batches
    start: Start
    terminated: threading.Event
    snapshots: Snapshots
    begun: Callable[[], None] = lambda: None
    """Called when the first step has ended."""
    audit: Audit | None = None
    clock: Callable[[], float] = time.monotonic
    """Gives seconds; measures the time of a step."""

    def __post_init__(self) -> None:
        self.progress = Progress(self.start.versions)
        self.step = self.start.inner_step
        self._cursor = self.start.cursor
        self._seen = self.start.global_step, self.step
        self._done = self._of_target(self.start.merged)
        """How much of the target in tokens is merged, where `WHOLE` is all of it. The same on all hosts."""
        self._contested: dict[int, int] = {}
        """See `StepProposal`."""
        self._finished: float | None = None

    def until_end(self) -> Ending:
        """Trains until the syncer's clock stops it, or this unit must end.

        Raises:
            LossNotFinite: the syncer has been given nothing that was computed in the bad step or later.
            DataError, StoreError, TimeoutError: the training data cannot be read, or not in time.
            Exception: it ended a link to the syncer, and only a new process can restore the link.
        """
        while (ending := self.advance()) is Ending.NONE:
            pass
        return ending

    def advance(self) -> Ending:
        """Does what is due and then one inner step. If it returns anything but `NONE`, it made no step. Raises: see
        `until_end`."""
        agreed = self.agreed()
        if agreed.ending is not Ending.NONE:
            return agreed.ending
        loss, cursor = self.begin(agreed)
        self.finish(float(loss), cursor)
        return Ending.NONE

    def agreed(self) -> StepProposal:
        """What all hosts can do before the next step. Raises: see `until_end`."""
        proposal = self.propose()
        return proposal.agreed(*self.agreement.extremes(proposal.values(len(self.start.versions))))

    def propose(self) -> StepProposal:
        """What this host can do before the next step. Reads the cut after the arrivals, so that it covers them."""
        self.client.check()
        arrivals, fetching = self.client.arrived(), self.client.fetching()
        capture = self.snapshots.wanted(self.progress.versions)
        done = self._of_target(self.client.merged())
        pulls, cut = self.client.pulls(), self.client.cut()
        coming = {n: arrival.version for n, arrival in arrivals.items()}
        coming |= {n: max(version, coming.get(n, NOTHING)) for n, version in fetching.items()}
        if self.audit is not None:
            arrivals = self.audit.admitted(arrivals)
        return StepProposal(arrivals, pulls, cut, capture, self._ending(), done, coming)

    def begin(self, agreed: StepProposal) -> tuple[Array, int]:
        """Does what all hosts agreed on and begins the step; returns its loss and the data position after it."""
        self._done = max(self._done, agreed.done)
        self._record(agreed.cut)
        if agreed.contested or self._contested:
            self.client.contest(agreed.contested)
            self._contested = agreed.contested
        pushes = self._extract(agreed.pulls)
        self._receive(agreed.arrivals)
        # A round may want what has just been received, and a step later it may be over.
        answered = {push.number for push in pushes}
        left = agreed.arrivals.keys() - answered
        pushes += self._extract({n: pull for n, pull in agreed.pulls.items() if n in left})
        if self.audit is not None:
            self.audit.look(self.progress.versions, self.fragments.anchors)
        if agreed.capture != NOTHING:
            version = self.progress.versions[agreed.capture]
            self.snapshots.capture(agreed.capture, version, self.inner, self.fragments)
        batch = self.batches.take(DATA_TIMEOUT)
        loss = self.inner.step(batch.tokens, self._rate())
        self._send(pushes)
        self.snapshots.collect()
        return loss, batch.cursor

    def _record(self, cut: CutId) -> None:
        """Records the unit for a new cut, before anything is sent or taken that comes after the cut."""
        # Before the first step there is nothing to save.
        if self.progress.see(cut) and self.progress.trained > 0 and not cut.final:
            self.snapshots.record(cut.step, self.step)

    def _ending(self) -> Ending:
        word = self.client.last_word()
        if isinstance(word, Fenced):
            return Ending.FENCED
        if isinstance(word, Refused):
            return Ending.MISMATCHED if word.version else Ending.REFUSED
        if self.terminated.is_set():
            return Ending.TERMINATED
        return Ending.NONE if word is None else Ending.STOPPED

    def _extract(self, pulls: dict[int, PullRequest]) -> list[PendingPush]:
        """Starts to copy the pulled fragments to the host.

        Skips a fragment that has made no step yet, or that has an older version than the round asks for. Its round may
        still be open when it has caught up.
        """
        pushes, codec = [], self.fragments.encoders.choose(self.client.communication.codec)
        for number, ask in pulls.items():
            offer = self.progress.offer(number, ask)
            if offer is not None:
                delta = self.fragments.extract(self.inner.theta, number, codec)
                pushes.append(PendingPush(number, ask, codec, delta, offer))
        return pushes

    def _receive(self, arrivals: dict[int, Arrival]) -> None:
        """Takes versions of fragments. Keeps AdamW's moments, and the steps made since a fragment's contribution."""
        for number, arrival in arrivals.items():
            self.inner.theta = self.fragments.receive(self.inner.theta, number, arrival.part)
            self.progress.adopt(number, arrival.version)
            self.client.adopt(number, arrival)
            if arrival.version > self._seen[0]:
                self._seen = arrival.version, self.step

    def _rate(self) -> float:
        """Learning rate at the newest global step seen plus the inner steps since, at most one interval of them."""
        newest, since = self._seen
        return learning_rate(
            self.run.inner,
            self.run.target.global_steps,
            newest + min(self.step - since, self.run.outer.interval),
            self.step - self.start.inner_step,
            healed=self.start.cold,
            done=self._done / WHOLE,
        )

    def _of_target(self, merged: int) -> int:
        target = self.run.target.tokens
        return 0 if target is None else min(merged, target) * WHOLE // target

    def _send(self, pushes: list[PendingPush]) -> None:
        """Gives this host's parts to the client, during the step that is under way."""
        for push in pushes:
            body = host_body(push.delta)
            self.client.contribute(
                push.number, push.ask, push.codec, body, push.offer, self.step, self._cursor
            )

    def finish(self, loss: float, cursor: int) -> None:
        """Counts and reports a step that has ended."""
        self.step += 1
        if not math.isfinite(loss):
            raise LossNotFinite(self.step, loss)
        if self.audit is not None:
            self.audit.tell(self.client)
        self._cursor = cursor
        self.progress.step(self.inner.tokens)
        now = self.clock()
        # The first step's time includes compilation, so this step counts in the report of the second.
        if self._finished is not None:
            done = self.progress
            self.client.report(self.step, done.steps, done.trained, loss, now - self._finished)
        else:
            self.begun()
        self._finished = now


def host_body(flat: Array) -> memoryview:
    """This host's part of a flat array over the mesh, as bytes; waits for the copy."""
    return memoryview(np.ascontiguousarray(host_part(flat)).view(np.uint8).data)

"""One host's link to the syncer. Every method returns at once; the network lives in background threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.learner.mailbox import Arrival, Counters, Mailbox
from atoll_runtime.sync.fragments import Layout
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import (
    PROTOCOL,
    Fenced,
    FetchRequest,
    Hello,
    Pull,
    PushHead,
    Refused,
    Stop,
    Welcome,
)
from atoll_runtime.transport.transport import Link, Transport, TransportError

__all__ = ["Arrival", "Exchange"]

log = logging.getLogger(__name__)

PUSH_ATTEMPTS = 6


class Exchange:
    """Used by the training loop's thread alone; see the module.

    Args:
        bounds: this host's [start, stop) in each padded fragment.
        padded: elements of each fragment, padded to the unit's devices.
    """

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        layout: Layout,
        bounds: Sequence[tuple[int, int]],
        padded: Sequence[int],
        transport: Transport,
    ) -> None:
        self._run, self._unit, self._layout = run, unit, layout
        self._bounds, self._padded, self._transport = tuple(bounds), tuple(padded), transport
        self._codec = run.outer.codec
        self._seed = (0, "")
        self._box = Mailbox([0] * len(layout.fragments), 2 * run.outer.overlap)
        self._link: Link | None = None
        self._threads: list[threading.Thread] = []

    @property
    def counters(self) -> Counters:
        """What happened on this link."""
        return self._box.counters

    def start(self, versions: Sequence[int], seeded_step: int, seed_message: str) -> None:
        """Says what this host holds; connects in the background, for ever, with back-off and jitter."""
        if len(versions) != len(self._layout.fragments):
            raise ValueError(f"versions: {len(versions)} for {len(self._layout.fragments)} fragments")
        self._box = Mailbox(versions, 2 * self._run.outer.overlap)
        self._seed = (seeded_step, seed_message)
        for name, loop in (("link", self._keep_linked), ("fetch", self._fetch_all), ("push", self._push_all)):
            thread = threading.Thread(target=loop, name=f"exchange-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def welcome(self, timeout: float) -> Welcome | None:
        """The syncer's first answer; waits at most `timeout` seconds, so only before training starts."""
        box = self._box
        with box.lock:
            box.lock.wait_for(lambda: box.welcome is not None or box.ended, timeout)
            return box.welcome

    def report(self, step: int, tokens: int, loss: float, step_seconds: float, cursor: int) -> None:
        """Each inner step. `tokens`: of the whole unit in it; `cursor`: the next position in its data."""
        self._box.put_report(step, tokens, loss, step_seconds, cursor)

    def arrived(self) -> dict[int, Arrival]:
        """The newest complete version of each fragment, if not taken yet; taken, it is the anchor."""
        return self._box.take_arrivals()

    def pulls(self) -> dict[int, Pull]:
        """The open rounds that want a contribution, by fragment, once the version they need was taken."""
        return self._box.pulls()

    def contribute(
        self, pull: Pull, part: NDArray[Any], steps: int, tokens: int, anchor: int, cursor: int
    ) -> None:
        """Queues this host's part of anchor − θ; dropped and counted when it comes late or the queue is full.

        Raises:
            ValueError: the part is not of the wire's dtype and this host's size.
        """
        start, stop = self._bounds[pull.fragment]
        dtype = codecs.DTYPES[self._codec]
        if part.shape != (stop - start,) or part.dtype != dtype:
            raise ValueError(f"part: {part.dtype}{list(part.shape)} must be {dtype}[{stop - start}]")
        head = PushHead(
            unit=self._unit.unit,
            incarnation=self._unit.incarnation,
            host=self._unit.host,
            hosts=self._unit.hosts,
            round=pull.round,
            anchor=anchor,
            steps=steps,
            tokens=tokens,
            cursor=cursor,
            inner_step=self._box.report.step if self._box.report else 0,
            start=start,
            stop=stop,
            padded=self._padded[pull.fragment],
            codec=self._codec,
            size=part.nbytes,
        )
        self._box.put_push(head, part)

    def stop(self) -> Stop | None:
        """The syncer's clock has reached the target and the final cut is safe: leave cleanly."""
        return self._box.stop

    def error(self) -> Fenced | Refused | None:
        """Terminal: a newer incarnation, a foreign layout, the wrong run."""
        return self._box.error

    def close(self, timeout: float) -> None:
        """Ends the session and the transport; waits at most `timeout` seconds for the threads."""
        self._box.close()
        link = self._link
        if link is not None:
            link.close()
        self._transport.close()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _keep_linked(self) -> None:
        attempt, last = 0, ""
        while not self._box.ended:
            try:
                if self._serve_link():
                    attempt, last = 0, ""
                reason = "the syncer ended the session"
            except TransportError as error:
                reason = str(error)
            self._box.disconnect()
            kind = reason.split(";")[0]  # behind it stands the address tried last, which changes
            if kind != last and not self._box.ended:
                log.warning("no link to the syncer, training goes on: %s", reason)
                last = kind
            self._box.pause(attempt)
            attempt += 1

    def _serve_link(self) -> bool:
        """One session from Hello to its end; true when it was welcomed."""
        hello = Hello(
            protocol=PROTOCOL,
            run_uid=self._run.uid,
            unit=self._unit.unit,
            incarnation=self._unit.incarnation,
            host=self._unit.host,
            hosts=self._unit.hosts,
            fingerprint=self._layout.fingerprint,
            codec=self._codec,
            versions=self._box.connect(),
            seeded_step=self._seed[0],
            seed_message=self._seed[1],
        )
        over = threading.Event()
        link = self._link = self._transport.session(hello, lambda: self._box.next_report(over))
        welcomed = False
        try:
            while not self._box.ended and (message := link.receive()) is not None:
                if isinstance(message, Welcome):
                    welcomed = True
                    log.info("linked to the syncer at global step %d", message.global_step)
                self._box.deliver(message)
        except TransportError:
            if not welcomed:
                raise
        finally:
            over.set()
            self._link = None
            link.close()
        return welcomed

    def _fetch_all(self) -> None:
        attempt = 0
        while (errand := self._box.next_errand()) is not None:
            p, (start, stop) = errand.fragment, self._bounds[errand.fragment]
            request = FetchRequest(
                self._unit.unit, self._unit.incarnation, p, errand.version, start, stop, self._codec
            )
            try:
                head, body = self._transport.fetch(request)
                part = codecs.view(body, self._codec)
                if part.shape != (stop - start,):
                    raise TransportError(f"{part.size} elements came, {stop - start} were asked for")
            except TransportError as error:
                log.warning("fragment %d version %d was not fetched: %s", p, errand.version, error)
                self._box.pause(attempt)
                attempt += 1
            else:
                attempt = 0
                self._box.put_arrival(errand, Arrival(head.version, part))

    def _push_all(self) -> None:
        while (waiting := self._box.next_push()) is not None:
            head, part = waiting
            self._box.count_push(self._push(head, part), part.nbytes)

    def _push(self, head: PushHead, part: NDArray[Any]) -> bool:
        """Sends until an answer comes, the round is over, or the attempts are used up."""
        body = memoryview(np.ascontiguousarray(part).view(np.uint8).data)
        for attempt in range(PUSH_ATTEMPTS):
            if not self._box.is_open(head.round):
                return False
            try:
                reply = self._transport.push(head, body)
            except TransportError as error:
                log.warning("a part for %s was not sent: %s", head.round, error)
                self._box.pause(attempt, lambda: not self._box.is_open(head.round))
                continue
            if not reply.accepted:
                log.info("a part for %s was not taken: %s", head.round, reply.reason)
            return reply.accepted
        return False

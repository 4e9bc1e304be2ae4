"""One host's link to one shard of the syncer: a session, fetches and pushes, each in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from atoll_runtime.contract import RunContract, UnitContract
from atoll_runtime.learner.holdings import Holdings
from atoll_runtime.learner.mailbox import Arrival, Mailbox
from atoll_runtime.sync.events import NO_CUT
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PROTOCOL, FetchRequest, Hello, PushHead, Welcome
from atoll_runtime.transport.transport import Link, Transport, TransportError

log = logging.getLogger(__name__)

PUSH_ATTEMPTS = 6


class Wire:
    """Connects for ever, with back-off and jitter, until it is closed or told to stop."""

    def __init__(
        self,
        run: RunContract,
        unit: UnitContract,
        shard: int,
        fingerprint: str,
        bounds: Sequence[tuple[int, int]],
        transport: Transport,
        box: Mailbox,
        seed: tuple[int, str],
    ) -> None:
        """`bounds`: this host's [start, stop) in each padded fragment of the shard; `seed`: step and message."""
        self._run, self._unit, self._shard = run, unit, shard
        self._fingerprint, self._bounds = fingerprint, tuple(bounds)
        self._transport, self._box, self._seed = transport, box, seed
        self._codec = run.outer.codec
        self._link: Link | None = None
        self._threads = [
            threading.Thread(target=self._work, args=[loop], name=f"shard-{shard}-{name}", daemon=True)
            for name, loop in (
                ("link", self._keep_linked),
                ("fetch", self._fetch_all),
                ("push", self._push_all),
            )
        ]
        for thread in self._threads:
            thread.start()

    def close(self, timeout: float) -> None:
        """Ends session and transport; waits at most `timeout` seconds for the threads."""
        self._box.close()
        link = self._link
        if link is not None:
            link.close()
        self._transport.close()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self, loop: Callable[[], None]) -> None:
        """A thread. What it does not mend itself (no memory, no further thread) ends the process by way of the training
        loop: without this thread the unit would train on, alone, and say nothing."""
        try:
            loop()
        except Exception as error:
            if not self._box.ended:
                log.exception("the link to shard %d of the syncer failed", self._shard)
                self._box.fail(error)

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
                log.warning("no link to shard %d of the syncer, training goes on: %s", self._shard, reason)
                last = kind
            self._box.pause(attempt)
            attempt += 1

    def _serve_link(self) -> bool:
        """One session from Hello to its end; true when it was welcomed."""
        versions, mark = self._box.connect()
        hello = Hello(
            protocol=PROTOCOL,
            run_uid=self._run.uid,
            unit=self._unit.unit,
            incarnation=self._unit.incarnation,
            host=self._unit.host,
            hosts=self._unit.hosts,
            fingerprint=self._fingerprint,
            codec=self._codec,
            versions=versions,
            seeded_step=self._seed[0],
            seed_message=self._seed[1],
            cut=mark.cut if mark else NO_CUT,
            address=self._unit.address,
        )
        over = threading.Event()
        link = self._link = self._transport.session(hello, lambda: self._box.next_up(over))
        welcomed = False
        try:
            while not self._box.ended and (message := link.receive()) is not None:
                if isinstance(message, Welcome):
                    welcomed = True
                    log.info("linked to shard %d at global step %d", self._shard, message.global_step)
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
        attempt, holdings = 0, Holdings(self._codec, self._bounds)
        while (errand := self._box.next_errand()) is not None:
            p, (start, stop) = errand.fragment, self._bounds[errand.fragment]
            held = holdings.of(p)
            request = FetchRequest(
                unit=self._unit.unit,
                incarnation=self._unit.incarnation,
                fragment=p,
                version=errand.version,
                start=start,
                stop=stop,
                codec=self._codec,
                held=held.version,
                series=held.series,
            )
            try:
                head, body = self._transport.fetch(request)
                part = holdings.take(head, body)
            except TransportError as error:
                log.warning("fragment %d version %d was not fetched: %s", p, errand.version, error)
                self._box.postpone(errand)
                self._box.pause(attempt)
                attempt += 1
            else:
                attempt = 0
                arrival = Arrival(head.version, part, errand.lineage)
                self._box.put_arrival(errand, arrival, head)

    def _push_all(self) -> None:
        while (waiting := self._box.next_push()) is not None:
            head, part = waiting
            self._box.count_push(self._push(head, part), head.size)

    def _push(self, head: PushHead, part: NDArray[Any]) -> bool:
        """Sends until an answer comes, the round is over (the next waits for the link), or the attempts are used up."""
        body = codecs.pack(part, self._codec)

        def wanted() -> bool:
            return self._box.is_open(head.round)

        for attempt in range(PUSH_ATTEMPTS):
            if not wanted():
                return False
            try:
                reply = self._transport.push(head, body, wanted)
            except TransportError as error:
                if wanted():
                    log.warning("a part for %s was not sent: %s", head.round, error)
                self._box.pause(attempt, lambda: not wanted())
                continue
            if not reply.accepted:
                log.info("a part for %s was not taken: %s", head.round, reply.reason)
            return reply.accepted
        return False

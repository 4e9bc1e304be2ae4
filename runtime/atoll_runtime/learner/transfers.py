"""One host's contributions to one shard and versions from it, as many at once as a round trip holds."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from atoll_runtime.interfaces import Network
from atoll_runtime.learner.communication import LinkPolicy
from atoll_runtime.learner.signals import Signals
from atoll_runtime.protocol.communication import BITS
from atoll_runtime.protocol.linkmeter import LEAST_SECONDS
from atoll_runtime.protocol.linkshare import PUSHES
from atoll_runtime.protocol.messages import Header, Hello, Part
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.protocol.shardview import FetchTask, PullRequest, ShardView
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.transport import codecs
from atoll_runtime.transport.changes import Holdings
from atoll_runtime.transport.messages import FetchHead, FetchRequest, PushReply
from atoll_runtime.transport.transport import TransportError

log = logging.getLogger(__name__)

PUSH_ATTEMPTS = 6
BACKOFF_SECONDS = (0.2, 5.0)
"""First and longest wait between two attempts."""


@dataclass(frozen=True)
class Arrival:
    """A version of a fragment of which this host has received its whole part."""

    version: int
    part: NDArray[Any]
    """This host's contiguous part of the padded fragment, in the wire's dtype (bfloat16 or float32)."""
    lineage: str = ""
    """The lineage of the version."""


class Transfers:
    """Call `adopt`, `pulls`, `contribute`, `asked`, and the methods of `link` with the lock of `signals` held.

    Args:
        bounds: this host's [start, stop) in each padded fragment of the shard.
    """

    def __init__(
        self,
        hello: Hello,
        bounds: Sequence[tuple[int, int]],
        network: Network,
        policy: LinkPolicy,
        link: ShardView,
        signals: Signals,
    ) -> None:
        self.arrivals: dict[int, Arrival] = {}
        """Arrivals that the training loop has not adopted yet."""
        self.headers: deque[Header] = deque()
        """Headers of contributions that wait for the session."""
        self._hello, self._bounds, self._network = hello, bounds, network
        self._policy, self._clock, self._meter = policy, policy.clock, policy.meter
        self._link, self._signals = link, signals
        elements = sum(stop - start for start, stop in bounds)
        self._share = policy.share(len(bounds) - len(link.empty), elements)
        self._holdings = Holdings(hello.codec, bounds, policy.exact)
        self._waiting: deque[tuple[Header, memoryview, bool]] = deque()
        """Contributions that wait for the link."""
        self.fetching: dict[int, int] = {}
        """For each fragment that is being fetched the version that was the newest when this began."""
        self._pushing = 0
        """How many contributions are being sent."""
        self._fetch_backoff = Backoff(*BACKOFF_SECONDS)

    def asked(self, p: int, step: int) -> None:
        """Call when the round of `step` asks for fragment `p`."""
        self._share.asked(p, step, self._clock())
        self._policy.look()

    def adopt(self, p: int, arrival: Arrival) -> None:
        """The training loop has adopted an arrival. A newer one stays."""
        if self.arrivals.get(p) is arrival:
            del self.arrivals[p]
        self._link.adopt(p, arrival.version, arrival.lineage)

    def pulls(self) -> dict[int, PullRequest]:
        """Open rounds in which the link can take part, if their least anchor is here."""
        asks = self._link.answerable()
        if not asks:  # after most steps
            return asks
        now, pushes, fetches = self._clock(), len(self._waiting) + self._pushing, self._link.wanted
        return {p: ask for p, ask in asks.items() if self._share.ready(p, now, pushes, fetches)}

    def contribute(self, part: Part, codec: str, body: memoryview) -> None:
        """Answers a pull. The header is sent at once, the body when the link is free. If the round is over, the
        contribution is dropped."""
        if not self._link.answered(part.round):
            return
        share, before = self._share, len(self._waiting) + self._pushing
        seconds = min(share.seconds * (before + 1), TRANSFER_SECONDS)
        share.round_trip = self._meter.round_trip(self._clock())
        answer = min(share.round_trip + self._policy.slower(share), TRANSFER_SECONDS)
        header = Header(part, codec, len(body), seconds, answer, self._policy.turn(share))
        share.joined(part.round.fragment, self._clock())
        self.headers.append(header)
        self._waiting.append((header, body, before < PUSHES))

    async def fetch_all(self) -> None:
        """Fetches the wanted versions until the end."""
        async with asyncio.TaskGroup() as tasks:
            while await self._signals.until(lambda: self._fetch_task):
                fetch_task = self._fetch_task
                assert fetch_task is not None
                self.fetching[fetch_task.fragment] = fetch_task.newest
                tasks.create_task(self._signals.work(self._fetch, fetch_task))

    async def push_all(self) -> None:
        """Pushes waiting contributions until the end."""
        async with asyncio.TaskGroup() as tasks:
            while await self._signals.until(lambda: self._waiting and self._pushing < self._share.beside):
                with self._signals.lock:
                    self._pushing += 1
                    header, body, few = self._waiting.popleft()
                tasks.create_task(self._signals.work(self._push, header, body, few))

    @property
    def _fetch_task(self) -> FetchTask | None:
        """What to fetch next; None if there is nothing, or enough is being fetched."""
        with self._signals.lock:
            fetch_task = self._link.fetch_task(self.fetching)
        return fetch_task if fetch_task is not None and len(self.fetching) < self._share.beside else None

    async def _fetch(self, fetch_task: FetchTask) -> None:
        hello, p = self._hello, fetch_task.fragment
        (start, stop), held, codec = self._bounds[p], self._holdings.of(p), self._policy.now.fetch
        request = FetchRequest(
            unit=hello.unit,
            incarnation=hello.incarnation,
            fragment=p,
            version=fetch_task.version,
            start=start,
            stop=stop,
            codec=self._holdings.wanted(p, codec),
            held=held.version,
            series=held.series,
            host=hello.host,
            turn=self._policy.turn(self._share),
        )
        began = self._clock()
        try:
            head, body = await self._receive(request)
            part = await asyncio.to_thread(self._holdings.take, head, body, codec == "int4")
        except TransportError as error:
            self._meter.failed()
            log.warning("fragment %d version %d was not fetched: %s", p, fetch_task.version, error)
            with self._signals.lock:
                self._link.postpone(fetch_task)
            await self._signals.until(lambda: False, self._fetch_backoff.seconds())
        else:
            self._fetch_backoff = Backoff(*BACKOFF_SECONDS)
            with self._signals.lock:
                self._share.fetched(self._seconds(began), BITS[head.codec] * (stop - start))
                self._link.counted(head.merged)
                if self._link.fetched(fetch_task, head.version, head.cut, head.series):
                    self.arrivals[p] = Arrival(head.version, part, self._link.lineage)
        del self.fetching[p]
        self._policy.look()
        self._signals.wake()

    async def _receive(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """Fetches head and body, and measures the link."""
        began, bits, elements = self._clock(), 0.0, request.stop - request.start
        # The most that may come: a shard without the requested encoding sends the version whole.
        transfer = self._meter.began("down", began, BITS[codecs.whole(self._hello.codec)] * elements)
        try:
            head, body = await self._network.fetch(
                request, lambda: self._meter.answered(transfer, self._clock() - began, self._clock())
            )
            bits = BITS.get(head.codec, 0.0) * elements
        finally:
            self._meter.ended(transfer, self._clock(), bits)
        return head, body

    async def _push(self, header: Header, body: memoryview, few: bool) -> None:
        """Sends until an answer comes, the round is over (so that the next one gets the link), or no attempts are left.
        Only a first attempt has known bits, because the shard may have had a part of the body at a later one.
        `few`: as for `LinkShare.missed`."""
        # The header was sent first, on the session. Its answer may arrive before the body begins.
        await asyncio.to_thread(lambda: None)
        round_id, backoff, accepted = header.part.round, Backoff(*BACKOFF_SECONDS), False
        seconds, bits = 0.0, _bits(header)

        def over() -> bool:
            """As far as this host knows, the round no longer wants a contribution."""
            return self._signals.ended or round_id not in self._link.open

        for _ in range(PUSH_ATTEMPTS):
            if over():
                break
            began = self._clock()
            try:
                reply = await self._attempt(header, body, lambda: not over(), bits)
            except TransportError as error:
                seconds, bits = self._seconds(began), 0.0
                if not over():
                    self._meter.failed()
                    log.warning("a part for %s was not sent: %s", round_id, error)
                await self._signals.until(over, backoff.seconds())
                continue
            accepted, seconds = reply.accepted, self._seconds(began)
            if not accepted:
                log.info("a part for %s was not taken: %s", round_id, reply.reason)
            break
        with self._signals.lock:
            self._pushing -= 1
            if accepted:
                self._share.pushed(round_id.fragment, seconds, bits)
            else:
                self._share.missed(round_id.fragment, seconds, _bits(header), few=few)
        self._policy.look()
        self._signals.wake()

    async def _attempt(
        self, header: Header, body: memoryview, wanted: Callable[[], bool], bits: float
    ) -> PushReply:
        """One attempt, which is measured as `bits` if it is accepted."""
        sent = 0.0
        transfer = self._meter.began("up", self._clock(), _bits(header))
        try:
            reply = await self._network.push(header, body, wanted)
            sent = bits if reply.accepted else 0.0
        finally:
            self._meter.ended(transfer, self._clock(), sent)
        return reply

    def _seconds(self, began: float) -> float:
        """Seconds of a transfer that began then, without the round trip."""
        now = self._clock()
        self._share.round_trip = self._meter.round_trip(now)
        return max(now - began - self._share.round_trip, LEAST_SECONDS)


def _bits(header: Header) -> float:
    """Bits of a contribution."""
    return BITS[header.codec] * (header.part.stop - header.part.start)

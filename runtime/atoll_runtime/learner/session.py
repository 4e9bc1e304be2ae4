"""One host's session with one shard of the syncer, its fetches and its pushes: three tasks on one event loop.

The training loop's thread hands over and takes what has come by the first methods. Each holds the lock for a moment,
and none waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import NDArray

from atoll_runtime.interfaces import Network
from atoll_runtime.protocol.events import Part
from atoll_runtime.protocol.identifiers import CutId
from atoll_runtime.protocol.link import Ask, Errand, Link
from atoll_runtime.protocol.linkmeter import LinkMeter
from atoll_runtime.protocol.linkshare import LinkShare
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.transport import codecs
from atoll_runtime.transport.changes import Holdings
from atoll_runtime.transport.messages import (
    Announce,
    Audit,
    Beginning,
    Down,
    Fenced,
    FetchHead,
    FetchRequest,
    Header,
    Hello,
    Mark,
    Marker,
    Over,
    Pull,
    PushReply,
    Refused,
    Report,
    Stop,
    Up,
    Welcome,
)
from atoll_runtime.transport.transport import TransportError

log = logging.getLogger(__name__)

PUSH_ATTEMPTS = 6
REPORT_SECONDS = 0.1
"""Least time between two reports on the wire; those in between are coalesced."""
BACKOFF_SECONDS = (0.2, 5.0)
"""First and longest wait between two attempts."""


@dataclass(frozen=True)
class Arrival:
    """A version of a fragment that this host has received whole."""

    version: int
    part: NDArray[Any]
    """This host's contiguous part of the padded fragment, in the wire's dtype (bfloat16 or float32)."""
    lineage: str = ""
    """That the version belongs to."""


@dataclass
class Counters:
    """What happened on this link since it was made."""

    connections: int = 0
    pushed: int = 0
    dropped: int = 0
    """Contributions that did not reach a round: over or refused."""
    bytes_in: int = 0
    bytes_out: int = 0


class ShardSession:
    """Connects for ever, with back-off and jitter, until it is closed or told to stop.

    Args:
        hello: what this host says first, with the versions that it holds now.
        lineage: that these belong to; empty where it is not known.
        bounds: this host's [start, stop) in each padded fragment of the shard.
        clock: seconds, by which the link is measured.
        meter: of the host's link to all shards.
    """

    def __init__(
        self,
        shard: int,
        hello: Hello,
        lineage: str,
        bounds: Sequence[tuple[int, int]],
        network: Network,
        clock: Callable[[], float],
        meter: LinkMeter,
    ) -> None:
        self.answered = threading.Event()
        """The shard has answered, or will not."""
        self.counters = Counters()
        self.welcome: Welcome | None = None
        """The first one."""
        self.stop: Stop | None = None
        self.error: Fenced | Refused | None = None
        self.failure: Exception | None = None
        """Ended a task."""
        self._shard, self._hello, self._bounds = shard, hello, bounds
        self._network, self._clock, self._meter = network, clock, meter
        empty = frozenset(p for p, (start, stop) in enumerate(bounds) if start == stop)
        self._lock = threading.Lock()
        self._link = Link(list(hello.versions), lineage=lineage, empty=empty)
        self._share = LinkShare(len(bounds) - len(empty))
        self._holdings = Holdings(hello.codec, bounds)
        self._arrivals: dict[int, Arrival] = {}
        self._beginning: Beginning | None = None
        """Goes with every report."""
        self._report: Report | None = None
        self._mark: Mark | None = None
        self._audit: Audit | None = None
        self._unsent: set[type[Report] | type[Mark] | type[Audit]] = set()
        self._headers: deque[Header] = deque()
        """They wait for the session."""
        self._quiet_until = 0.0
        """When the next report may be sent."""
        self._parts: deque[tuple[Header, NDArray[Any]]] = deque()
        """Contributions that wait for the link."""
        self._pushing = 0
        """Contributions on it."""
        self._fetching: set[int] = set()
        """Fragments on it."""
        self._fetch_backoff = Backoff(*BACKOFF_SECONDS)
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._noticed = False
        """The tasks will look at what has changed."""

    # for the training loop

    def begin(self, beginning: Beginning) -> None:
        """The unit's first step has ended; told with the reports that follow."""
        with self._lock:
            self._beginning = beginning

    def report(self, step: int, tokens: int, loss: float, step_seconds: float, cursor: int) -> None:
        """Adds an inner step to the sums; what was not sent yet is replaced."""
        with self._lock:
            steps, total = (self._report.steps, self._report.tokens) if self._report else (0, 0)
            steps, total = steps + 1, total + tokens
            self._report = Report(step, steps, total, loss, step_seconds, cursor, self._beginning)
            self._unsent.add(Report)
            self._notify()

    def mark(self, cut: CutId, trained: int) -> None:
        """The unit has recorded itself; reports of later steps go out after it."""
        with self._lock:
            self._mark = Mark(cut, trained)
            self._unsent.add(Mark)
            self._notify()

    def audit(self, step: int, kind: str, loss: float) -> None:
        """The result of an audit; one that was not sent yet is replaced."""
        with self._lock:
            self._audit = Audit(step, kind, loss)
            self._unsent.add(Audit)
            self._notify()

    def arrived(self) -> dict[int, Arrival]:
        """What arrived since the last call."""
        with self._lock:
            taken, self._arrivals = self._arrivals, {}
            return taken

    def adopt(self, p: int, arrival: Arrival) -> None:
        """The loop has taken it: it is the anchor now."""
        with self._lock:
            self._link.adopt(p, arrival.version, arrival.lineage)
            self._notify()

    def pulls(self) -> dict[int, Ask]:
        """Open rounds whose least anchor the loop has taken, and in which the link can take part."""
        with self._lock:
            now, waiting, fetches = self._clock(), len(self._parts) + self._pushing, self._link.wanted
            asks = self._link.answerable()
            return {p: ask for p, ask in asks.items() if self._share.ready(p, now, waiting, fetches)}

    def contribute(self, part: Part, values: NDArray[Any]) -> None:
        """Answers a pull: its header goes out at once, its body when the link is free. Dropped and counted when its
        round is over."""
        with self._lock:
            if not self._link.answered(part.round):
                self.counters.dropped += 1
                return
            codec, expected = self._hello.codec, self._share.seconds * (len(self._parts) + self._pushing + 1)
            size = codecs.pushed_size(values.size, codec)
            header = Header(part, codec, size, min(expected, TRANSFER_SECONDS), self._share.round_trip)
            self._share.joined(part.round.fragment, self._clock())
            self._headers.append(header)
            self._parts.append((header, values))
            self._notify()

    @property
    def cut(self) -> CutId:
        """The newest cut that the shard has recorded itself for, as far as this host has seen."""
        with self._lock:
            return self._link.cut

    @property
    def merged(self) -> int:
        """Tokens that the shard has merged, as far as this host has heard."""
        with self._lock:
            return self._link.merged

    @property
    def ended(self) -> bool:
        """Nothing more will be exchanged."""
        return self._closed or any(end is not None for end in (self.error, self.failure, self.stop))

    # on the event loop

    def start(self) -> None:
        """Begins to connect."""
        self._loop = asyncio.get_running_loop()
        jobs = self._keep_linked, self._fetch_all, self._push_all
        self._tasks = [self._loop.create_task(self._work(job)) for job in jobs]

    async def close(self) -> None:
        """Ends session and transfers."""
        self._closed = True
        self.answered.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._network.close()

    def _notify(self) -> None:
        """Has the tasks look at what has changed. In any thread, with the lock held."""
        if self._loop is not None and not (self._noticed or self._closed):
            self._noticed = True
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._noticed = False
        if self.welcome is not None or self.ended:
            self.answered.set()
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def _until(self, due: Callable[[], object], seconds: float | None = None) -> bool:
        """Waits for something to do, for so many seconds at most; false at the end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not (self.ended or due()):
                    await self._changed.wait()
        return not self.ended

    async def _work(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """A task. What it does not mend itself (no memory, no further thread) ends the process by way of the training
        loop: without this task the unit would train on, alone, and say nothing."""
        try:
            await job()
        except Exception as error:
            if not self.ended:
                log.exception("the link to shard %d of the syncer failed", self._shard)
                self.failure = error
                self._wake()

    async def _keep_linked(self) -> None:
        backoff, last = Backoff(*BACKOFF_SECONDS), ""
        while not self.ended:
            try:
                if await self._serve_link():
                    backoff, last = Backoff(*BACKOFF_SECONDS), ""
                reason = "the syncer ended the session"
            except TransportError as error:
                reason = str(error)
            with self._lock:  # its pulls are void; the next session brings them anew
                self._link.disconnected()
                self._headers.clear()
            self._wake()
            kind = reason.split(";")[0]  # behind it stands the address tried last, which changes
            if kind != last and not self.ended:
                log.warning("no link to shard %d of the syncer, training goes on: %s", self._shard, reason)
                last = kind
            await self._until(lambda: False, backoff.seconds())

    async def _serve_link(self) -> bool:
        """One session from Hello to its end; true when it was welcomed."""
        with self._lock:  # the last of each is due again
            hello = msgspec.structs.replace(self._hello, versions=tuple(self._link.held))
            known = (self._report, self._mark, self._audit)
            self._unsent = {type(last) for last in known if last is not None}
        welcomed = False
        try:
            session = self._network.session(hello, self._outgoing())
            async with contextlib.aclosing(session):  # type: ignore[type-var]
                async for message in session:
                    if isinstance(message, Welcome):
                        welcomed = True
                        log.info("linked to shard %d at global step %d", self._shard, message.global_step)
                    self.take(message)
                    if self.ended:
                        break
        except TransportError:
            if not welcomed:
                raise
            self._meter.failed()
        return welcomed

    def take(self, message: Down) -> None:
        """A message of the shard."""
        with self._lock:
            match message:
                case Welcome():
                    self.counters.connections += 1
                    self.welcome = self.welcome or message
                    self._link.counted(message.merged)
                    if self._link.welcomed(
                        message.lineage, message.versions, message.least, message.cut, message.series
                    ):
                        self._arrivals.clear()  # of a history that ended
                case Pull(round_id, least):
                    self._link.asked(round_id, least)
                    self._share.asked(round_id.fragment, round_id.step, self._clock())
                case Over(round_id):
                    self._link.over(round_id)
                case Announce(p, version, needed):
                    self._link.announced(p, version, needed)
                case Marker(cut):
                    self._link.marked(cut)
                case Stop():
                    self.stop = message
                case Fenced() | Refused():
                    self.error = message
        self._wake()

    async def _outgoing(self) -> AsyncIterator[Up]:
        """Marks and headers at once, a report not before its time."""
        while await self._until(lambda: self._unsent or self._headers):
            wait = self._quiet_until - self._clock()
            if wait > 0 and not self._urgent:
                await self._until(lambda: self._urgent, wait)
                continue
            with self._lock:
                message = self._next_up()
            if message is not None:
                yield message

    @property
    def _urgent(self) -> bool:
        return Mark in self._unsent or bool(self._headers)

    def _next_up(self) -> Up | None:
        """A mark comes before the report that follows it."""
        if Mark in self._unsent:
            self._unsent.discard(Mark)
            return self._mark
        if self._headers:
            return self._headers.popleft()
        if Audit in self._unsent:
            self._unsent.discard(Audit)
            return self._audit
        self._unsent.discard(Report)
        now = self._clock()
        self._quiet_until = now + REPORT_SECONDS
        return self._report and msgspec.structs.replace(self._report, link=self._meter.reading(now))

    async def _fetch_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while await self._until(lambda: self._errand is not None):
                errand = self._errand
                assert errand is not None
                self._fetching.add(errand.fragment)
                tasks.create_task(self._work(functools.partial(self._fetch_one, errand)))

    @property
    def _errand(self) -> Errand | None:
        """What to fetch now."""
        if len(self._fetching) >= self._share.beside:
            return None
        with self._lock:
            return self._link.errand(self._fetching)

    async def _fetch_one(self, errand: Errand) -> None:
        hello, p = self._hello, errand.fragment
        (start, stop), held = self._bounds[p], self._holdings.of(p)
        request = FetchRequest(
            unit=hello.unit,
            incarnation=hello.incarnation,
            fragment=p,
            version=errand.version,
            start=start,
            stop=stop,
            codec=hello.codec,
            held=held.version,
            series=held.series,
        )
        began = self._clock()
        try:
            head, body = await self._fetch(request)
            part = await asyncio.to_thread(self._holdings.take, head, body)
        except TransportError as error:
            self._meter.failed()
            log.warning("fragment %d version %d was not fetched: %s", p, errand.version, error)
            with self._lock:
                self._link.postpone(errand)
            await self._until(lambda: False, self._fetch_backoff.seconds())
        else:
            self._fetch_backoff = Backoff(*BACKOFF_SECONDS)
            with self._lock:
                self._share.fetched(self._seconds(began))
                self.counters.bytes_in += head.size
                self._link.counted(head.merged)
                if self._link.fetched(errand, head.version, head.cut, head.series):
                    self._arrivals[p] = Arrival(head.version, part, errand.lineage)
        self._fetching.discard(p)
        self._wake()

    def _seconds(self, began: float) -> float:
        """Of a transfer, without the round trip."""
        now = self._clock()
        self._share.round_trip = self._meter.round_trip(now)
        return max(now - began - self._share.round_trip, 1e-3)

    async def _fetch(self, request: FetchRequest) -> tuple[FetchHead, memoryview]:
        """Head and body."""
        began, size = self._clock(), 0
        self._meter.began("down", began)
        try:
            head, body = await self._network.fetch(
                request, lambda: self._meter.answered(self._clock() - began, self._clock())
            )
            size = head.size
        finally:
            self._meter.ended("down", self._clock(), size)
        return head, body

    async def _push_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            while await self._until(lambda: self._parts and self._pushing < self._share.beside):
                with self._lock:
                    self._pushing += 1
                    header, values = self._parts.popleft()
                tasks.create_task(self._work(functools.partial(self._push_one, header, values)))

    async def _push_one(self, header: Header, values: NDArray[Any]) -> None:
        p = header.part.round.fragment
        accepted, seconds = await self._send(header, values)
        with self._lock:
            self._pushing -= 1
            if accepted:
                self._share.pushed(p, seconds)
                self.counters.pushed += 1
                self.counters.bytes_out += header.size
            else:
                self._share.missed(p, seconds)
                self.counters.dropped += 1
        self._wake()

    async def _send(self, header: Header, values: NDArray[Any]) -> tuple[bool, float]:
        """Sends until an answer comes, the round is over (the next waits for the link), or the attempts are used up.
        Says whether it was accepted, and the seconds of the last attempt."""
        body, seconds = await asyncio.to_thread(codecs.pack, values, header.codec), 0.0
        round_id, backoff = header.part.round, Backoff(*BACKOFF_SECONDS)

        def over() -> bool:
            """The round wants no contribution any more, as far as this host knows."""
            return self.ended or round_id not in self._link.open

        for _ in range(PUSH_ATTEMPTS):
            if over():
                break
            began = self._clock()
            try:
                reply = await self._push(header, body, lambda: not over())
            except TransportError as error:
                self._meter.failed()
                seconds = self._seconds(began)
                if not over():
                    log.warning("a part for %s was not sent: %s", round_id, error)
                await self._until(over, backoff.seconds())
                continue
            if not reply.accepted:
                log.info("a part for %s was not taken: %s", round_id, reply.reason)
            return reply.accepted, self._seconds(began)
        return False, seconds

    async def _push(self, header: Header, body: memoryview, wanted: Callable[[], bool]) -> PushReply:
        """One attempt."""
        size = 0
        self._meter.began("up", self._clock())
        try:
            reply = await self._network.push(header, body, wanted)
            size = header.size if reply.accepted else 0
        finally:
            self._meter.ended("up", self._clock(), size)
        return reply

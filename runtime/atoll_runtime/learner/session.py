"""One host's session with one shard of the syncer."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence

import msgspec

from atoll_runtime.interfaces import Network
from atoll_runtime.learner.communication import LinkPolicy
from atoll_runtime.learner.signals import Signals
from atoll_runtime.learner.transfers import BACKOFF_SECONDS, Transfers
from atoll_runtime.protocol.messages import Audit, Beginning, Hello, Report
from atoll_runtime.protocol.shardview import ShardView
from atoll_runtime.syncer.backoff import Backoff
from atoll_runtime.transport.messages import Announce, Fenced, Marker, Over, Pull, Refused, Stop, Welcome
from atoll_runtime.transport.transport import TransportError
from atoll_runtime.transport.wire import Down, Up

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.1
"""Least time between two reports on the wire; those in between are coalesced."""


class ShardSession:
    """Connects again and again, with back-off and jitter, until it is closed or the syncer stops it.

    Args:
        hello: this host's first message.
        held: versions of the shard's fragments that it holds now.
        lineage: the lineage of these versions; empty if unknown.
        bounds: this host's [start, stop) in each padded fragment of the shard.
    """

    def __init__(
        self,
        shard: int,
        hello: Hello,
        held: Sequence[int],
        lineage: str,
        bounds: Sequence[tuple[int, int]],
        network: Network,
        policy: LinkPolicy,
        signals: Signals,
    ) -> None:
        self.welcome: Welcome | None = None
        """The shard's first answer."""
        self._shard, self._hello, self._network, self._signals = shard, hello, network, signals
        self._policy, self._clock, self._meter = policy, policy.clock, policy.meter
        empty = frozenset(p for p, (start, stop) in enumerate(bounds) if start == stop)
        self.link = ShardView(list(held), lineage=lineage, empty=empty)
        self.transfers = Transfers(hello, bounds, network, policy, self.link, signals)
        self.jobs = self._keep_linked, self.transfers.fetch_all, self.transfers.push_all
        """The tasks to run until the end."""
        self.beginning: Beginning | None = None
        """Sent with every report, once the unit's first step has ended."""
        self._last: dict[type[Up], Report | Audit] = {}
        """The training loop's last message of each kind; a new session sends them again."""
        self._unsent: set[type[Up]] = set()
        self._quiet_until = 0.0
        """When the next report may be sent."""
        self._greeted = self._clock()
        """When Hello was sent last."""

    def report(self, step: int, steps: int, tokens: int, loss: float, step_seconds: float) -> None:
        """Queues a report, as `say`."""
        self.say(Report(step, steps, tokens, loss, step_seconds, self.beginning))

    def say(self, message: Report | Audit) -> None:
        """Queues a message. It replaces one of its kind that was not sent yet. Call with the lock held."""
        self._last[type(message)] = message
        self._unsent.add(type(message))

    async def _keep_linked(self) -> None:
        backoff, last = Backoff(*BACKOFF_SECONDS), ""
        while not self._signals.ended:
            welcomed, reason = await self._serve_link()
            if welcomed:
                backoff, last = Backoff(*BACKOFF_SECONDS), ""
            with self._signals.lock:  # bodies of contributions continue
                self.link.disconnected()
                self.transfers.headers.clear()
            self._signals.wake()
            kind = reason.split(";")[0]  # the rest names the address tried last, which changes
            if kind != last and not self._signals.ended:
                log.warning("no link to shard %d of the syncer, training goes on: %s", self._shard, reason)
                last = kind
            await self._signals.until(lambda: False, backoff.seconds())

    async def _serve_link(self) -> tuple[bool, str]:
        """Runs one session from Hello to its end; returns whether it was welcomed, and why it ended."""
        with self._signals.lock:  # the last message of each kind is due again
            self._unsent = set(self._last)
        welcomed, reason = False, "the syncer ended the session"
        try:
            session = self._network.session(self._hello, self._outgoing())
            async with contextlib.aclosing(session):  # type: ignore[type-var]
                async for message in session:
                    if isinstance(message, Welcome):
                        welcomed = True
                        self._meter.welcomed(self._clock() - self._greeted, self._clock())
                        log.info("linked to shard %d at global step %d", self._shard, message.global_step)
                    self.take(message)
                    if self._signals.ended:
                        break
        except TransportError as error:
            reason = str(error)
            if welcomed:
                self._meter.failed()
        return welcomed, reason

    def take(self, message: Down) -> None:
        """Handles a message of the shard."""
        with self._signals.lock:
            match message:
                case Welcome():
                    self.welcome = self.welcome or message
                    self._signals.lock.notify_all()
                    self.link.counted(message.merged)
                    if self.link.welcomed(
                        message.lineage,
                        message.versions,
                        message.least,
                        message.cut,
                        message.series,
                        message.taking,
                    ):
                        self.transfers.arrivals.clear()  # they are of a history that ended
                case Pull(round_id, least):
                    self.link.asked(round_id, least)
                    self.transfers.asked(round_id.fragment, round_id.step)
                case Over(round_id):
                    self.link.over(round_id)
                case Announce(p, version, least):
                    self.link.announced(p, version, least)
                case Marker(cut):
                    self.link.marked(cut)
                case Stop() | Fenced() | Refused():
                    self._signals.end(message)
        self._signals.wake()

    async def _outgoing(self) -> AsyncIterator[Up]:
        """Yields headers at once; audits and reports not before `_quiet_until`."""
        self._greeted = self._clock()  # Hello has just been sent; to connect took time before
        while await self._signals.until(lambda: self._unsent or self.transfers.headers):
            wait = self._quiet_until - self._clock()
            if wait > 0 and not self.transfers.headers:
                await self._signals.until(lambda: self.transfers.headers, wait)
                continue
            with self._signals.lock:
                message = self._next_up()
            if message is not None:
                yield message

    def _next_up(self) -> Up | None:
        """The next message to send."""
        if self.transfers.headers:
            return self.transfers.headers.popleft()
        kind = next((kind for kind in (Audit, Report) if kind in self._unsent), None)
        if kind is None:
            return None
        self._unsent.discard(kind)
        message, now = self._last[kind], self._clock()
        if isinstance(message, Report):
            self._quiet_until = now + REPORT_SECONDS
            self._policy.look()
            return msgspec.structs.replace(message, link=self._policy.reading())
        return message

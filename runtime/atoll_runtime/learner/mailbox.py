"""What waits between the training loop and one shard's network threads. Every access is short and locked."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from atoll_runtime.sync.events import CutId, RoundId, ShardClock
from atoll_runtime.sync.link import Ask, Errand, Link
from atoll_runtime.transport.messages import (
    Announce,
    Beginning,
    Clock,
    Down,
    Fenced,
    FetchHead,
    Mark,
    Marker,
    Over,
    Pull,
    PushHead,
    Refused,
    Report,
    Stop,
    Welcome,
)

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
    """Contributions that did not reach a round: over, refused, or the queue was full."""
    bytes_in: int = 0
    bytes_out: int = 0


class Mailbox:
    """`limit`: contributions that may wait to be sent; `lineage`: of `versions`, where it is known; `empty`: fragments
    without elements."""

    def __init__(
        self, versions: Sequence[int], limit: int, lineage: str = "", empty: Collection[int] = ()
    ) -> None:
        self.lock = threading.Condition()
        self.counters = Counters()
        self.welcome: Welcome | None = None
        self.stop: Stop | None = None
        self.error: Fenced | Refused | None = None
        self.failure: Exception | None = None
        """Ended a thread of the link."""
        self.report: Report | None = None
        self.beginning: Beginning | None = None
        """Goes with every report."""
        self._limit = limit
        self._link = Link(list(versions), lineage=lineage, empty=frozenset(empty))
        self._arrivals: dict[int, Arrival] = {}
        self._pushes: deque[tuple[PushHead, NDArray[Any]]] = deque()
        self._mark: Mark | None = None
        self._unsent: set[type[Report] | type[Mark]] = set()
        self._closed = False

    @property
    def ended(self) -> bool:
        """Nothing more will be exchanged."""
        return self._closed or any(end is not None for end in (self.error, self.failure, self.stop))

    @property
    def cut(self) -> CutId:
        """The newest cut that the shard has recorded itself for, as far as this host has seen."""
        with self.lock:
            return self._link.cut

    @property
    def merged(self) -> int:
        """Tokens that the shard has merged, as far as this host has heard."""
        with self.lock:
            return self._link.merged

    @property
    def clock(self) -> ShardClock:
        with self.lock:
            return self._link.clock

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self.lock.notify_all()

    def fail(self, error: Exception) -> None:
        """A thread of the link has ended for a reason that no other attempt mends."""
        with self.lock:
            self.failure = error
            self.lock.notify_all()

    def await_welcome(self, timeout: float) -> None:
        """Blocks until the shard has answered, for at most `timeout` seconds."""
        with self.lock:
            self.lock.wait_for(lambda: self.welcome is not None or self.ended, timeout)

    def put_report(
        self,
        step: int,
        tokens: int,
        loss: float,
        step_seconds: float,
        cursor: int,
        clocks: tuple[ShardClock, ...],
    ) -> None:
        """Adds a step to the sums; what was not sent yet is replaced."""
        with self.lock:
            steps, total = (self.report.steps, self.report.tokens) if self.report else (0, 0)
            self.report = Report(
                step, steps + 1, total + tokens, loss, step_seconds, cursor, clocks, self.beginning
            )
            self._unsent.add(Report)
            self.lock.notify_all()

    def put_mark(self, cut: CutId, trained: int) -> None:
        """The unit has recorded itself; reports of later steps go out after it."""
        with self.lock:
            self._mark = Mark(cut, trained)
            self._unsent.add(Mark)
            self.lock.notify_all()

    def take_arrivals(self) -> dict[int, Arrival]:
        """What arrived since the last call."""
        with self.lock:
            taken, self._arrivals = self._arrivals, {}
            return taken

    def adopt(self, p: int, arrival: Arrival) -> None:
        """The loop has taken it: it is the anchor now."""
        with self.lock:
            self._link.adopt(p, arrival.version, arrival.lineage)

    def pulls(self) -> dict[int, Ask]:
        """Open rounds whose least anchor the loop has taken."""
        with self.lock:
            return self._link.answerable()

    def put_push(self, head: PushHead, part: NDArray[Any]) -> None:
        """Answers a pull; dropped and counted when its round is over or the queue is full."""
        with self.lock:
            if not self._link.answered(head.round) or len(self._pushes) >= self._limit:
                self.counters.dropped += 1
                return
            self._pushes.append((head, part))
            self.lock.notify_all()

    def connect(self) -> tuple[tuple[int, ...], Mark | None]:
        """A session begins: the versions held, and the newest mark; the last report and mark are due again."""
        with self.lock:
            self._unsent = {kind for kind, held in ((Report, self.report), (Mark, self._mark)) if held}
            return tuple(self._link.held), self._mark

    def disconnect(self) -> None:
        """A session ended: its pulls are void; the next one brings them anew."""
        with self.lock:
            self._link.disconnected()
            self.lock.notify_all()

    def next_up(self, over: threading.Event) -> Report | Mark | None:
        """Blocks for the next message of a session; None when the session is over."""

        def ended() -> bool:
            return self.ended or over.is_set()

        with self.lock:
            self.lock.wait_for(lambda: Mark in self._unsent or ended(), REPORT_SECONDS)
            self.lock.wait_for(lambda: self._unsent or ended())
            if ended():
                return None
            if Mark in self._unsent:
                self._unsent.discard(Mark)
                return self._mark
            self._unsent.discard(Report)
            return self.report

    def deliver(self, message: Down) -> None:
        """A message of the shard."""
        with self.lock:
            match message:
                case Welcome():
                    self._welcomed(message)
                case Stop():
                    self.stop = message
                case Fenced() | Refused():
                    self.error = message
            if tell(self._link, message):
                self._arrivals.clear()
            self.lock.notify_all()

    def due(self) -> list[Report | Mark]:
        """What a session would send now, a mark before the report that follows it; never blocks."""
        with self.lock:
            kinds, self._unsent = self._unsent, set()
            mark, report = self._mark if Mark in kinds else None, self.report if Report in kinds else None
            return [message for message in (mark, report) if message is not None]

    def next_errand(self, timeout: float | None = None) -> Errand | None:
        """Blocks for a fragment to fetch, for at most `timeout` seconds; None at the end, and without one."""
        with self.lock:
            self.lock.wait_for(lambda: self._link.wanted or self.ended, timeout)
            return None if self.ended else self._link.errand()

    def postpone(self, errand: Errand) -> None:
        """A fetch that failed is tried again after the others."""
        with self.lock:
            self._link.postpone(errand)

    def put_arrival(self, errand: Errand, arrival: Arrival, head: FetchHead) -> None:
        """A fetched fragment, and what the shard said when it sent it."""
        with self.lock:
            self.counters.bytes_in += head.size
            self._link.counted(head.merged)
            if self._link.fetched(errand, arrival.version, head.cut):
                self._arrivals[errand.fragment] = arrival

    def next_push(self, timeout: float | None = None) -> tuple[PushHead, NDArray[Any]] | None:
        """Blocks for a contribution to send, for at most `timeout` seconds; None at the end, and without one."""
        with self.lock:
            self.lock.wait_for(lambda: self._pushes or self.ended, timeout)
            return None if self.ended or not self._pushes else self._pushes.popleft()

    def is_open(self, round_id: RoundId) -> bool:
        """The round still wants contributions, as far as this host knows."""
        with self.lock:
            return round_id in self._link.open and not self.ended

    def count_push(self, accepted: bool, size: int) -> None:
        with self.lock:
            self.counters.pushed += accepted
            self.counters.dropped += not accepted
            self.counters.bytes_out += size if accepted else 0

    def pause(self, attempt: int, until: Callable[[], bool] = lambda: False) -> None:
        """Waits before the next attempt, longer each time, with jitter; `until` or the end cut it short."""
        first, longest = BACKOFF_SECONDS
        seconds = min(longest, first * 2 ** min(attempt, 10)) * random.uniform(0.5, 1.0)
        with self.lock:
            self.lock.wait_for(lambda: self.ended or until(), seconds)

    def _welcomed(self, message: Welcome) -> None:
        self.counters.connections += 1
        self.welcome = self.welcome or message


def tell(link: Link, message: Down) -> bool:
    """What a shard's message says of fragments, rounds, cuts and clocks; of the rest nothing.

    True when what arrived before it is of a history that ended, see `Link.welcomed`.
    """
    match message:
        case Welcome():
            link.counted(message.merged)
            return link.welcomed(message.lineage, message.global_step, message.versions, message.cut)
        case Pull(round_id, least):
            link.asked(round_id, least)
        case Over(round_id):
            link.over(round_id)
        case Announce(p, version):
            link.announced(p, version)
        case Marker(cut):
            link.marked(cut)
        case Clock(clock):
            link.told(clock)
        case Stop(clock=ShardClock() as clock, cut=cut):
            link.told(clock)
            link.marked(cut)
    return False

"""What waits between the training loop and one shard's client. Every access is short and locked; none waits."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import NDArray

from atoll_runtime.sync.events import CutId, RoundId
from atoll_runtime.sync.link import Ask, Errand, Link
from atoll_runtime.sync.linkshare import LinkShare
from atoll_runtime.sync.rules import TRANSFER_SECONDS
from atoll_runtime.transport.messages import (
    Announce,
    Beginning,
    Down,
    Fenced,
    FetchHead,
    Mark,
    Marker,
    Offer,
    Over,
    Pull,
    PushHead,
    Refused,
    Report,
    Stop,
    Welcome,
)


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
    """`lineage`: of `versions`, where it is known; `empty`: fragments without elements; `clock`: seconds. `changed` is
    called after each change, in whichever thread made it, with the lock held."""

    def __init__(
        self,
        versions: Sequence[int],
        lineage: str = "",
        empty: Collection[int] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.Lock()
        self.changed: Callable[[], None] = lambda: None
        self.answered = threading.Event()
        """The shard has answered, or will not."""
        self.counters = Counters()
        self.welcome: Welcome | None = None
        self.stop: Stop | None = None
        self.error: Fenced | Refused | None = None
        self.failure: Exception | None = None
        """Ended the client."""
        self.report: Report | None = None
        self.beginning: Beginning | None = None
        """Goes with every report."""
        self._clock = clock
        self._share = LinkShare(len(versions) - len(empty))
        self._link = Link(list(versions), lineage=lineage, empty=frozenset(empty))
        self._arrivals: dict[int, Arrival] = {}
        self._offers: deque[Offer] = deque()
        """Headers that wait for the session."""
        self._pushes: deque[tuple[PushHead, NDArray[Any]]] = deque()
        self._pushing = 0
        """Contributions on the wire."""
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

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self.answered.set()
            self.changed()

    def fail(self, error: Exception) -> None:
        """The client has ended for a reason that no other attempt mends."""
        with self.lock:
            self.failure = error
            self.answered.set()
            self.changed()

    def put_report(
        self,
        step: int,
        tokens: int,
        loss: float,
        step_seconds: float,
        cursor: int,
    ) -> None:
        """Adds a step to the sums; what was not sent yet is replaced."""
        with self.lock:
            steps, total = (self.report.steps, self.report.tokens) if self.report else (0, 0)
            self.report = Report(step, steps + 1, total + tokens, loss, step_seconds, cursor, self.beginning)
            self._unsent.add(Report)
            self.changed()

    def put_mark(self, cut: CutId, trained: int) -> None:
        """The unit has recorded itself; reports of later steps go out after it."""
        with self.lock:
            self._mark = Mark(cut, trained)
            self._unsent.add(Mark)
            self.changed()

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
        """Open rounds whose least anchor the loop has taken, and in which the link can take part."""
        with self.lock:
            now, fetches = self._clock(), self._link.wanted
            asks = self._link.answerable()
            return {p: ask for p, ask in asks.items() if self._share.ready(p, now, self._queued, fetches)}

    def put_push(self, head: PushHead, part: NDArray[Any]) -> None:
        """Answers a pull: its header goes out at once, its body when the link is free. Dropped and counted when its
        round is over."""
        with self.lock:
            if not self._link.answered(head.round):
                self.counters.dropped += 1
                return
            expected = self._share.seconds * (self._queued + 1)
            head = msgspec.structs.replace(head, seconds=min(expected, TRANSFER_SECONDS))
            self._share.joined(head.round.fragment, self._clock())
            self._offers.append(Offer(head))
            self._pushes.append((head, part))
            self.changed()

    @property
    def _queued(self) -> int:
        """Contributions that wait for the link or are on it."""
        return len(self._pushes) + self._pushing

    def connect(self) -> tuple[int, ...]:
        """A session begins: the versions held; the last report and mark are due again."""
        with self.lock:
            self._unsent = {kind for kind, held in ((Report, self.report), (Mark, self._mark)) if held}
            return tuple(self._link.held)

    def disconnect(self) -> None:
        """A session ended: its pulls are void; the next one brings them anew."""
        with self.lock:
            self._link.disconnected()
            self._offers.clear()
            self.changed()

    def next_up(self) -> Report | Mark | Offer | None:
        """What a session sends next: a mark before the report that follows it."""
        with self.lock:
            if Mark in self._unsent:
                self._unsent.discard(Mark)
                return self._mark
            if self._offers:
                return self._offers.popleft()
            if Report in self._unsent:
                self._unsent.discard(Report)
                return self.report
            return None

    @property
    def urgent(self) -> bool:
        """A mark or a header is to be sent, at once."""
        return Mark in self._unsent or bool(self._offers)

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
            if self.welcome is not None or self.ended:
                self.answered.set()
            if tell(self._link, message):
                self._arrivals.clear()
            if isinstance(message, Pull):
                self._share.asked(message.fragment, message.round.step, self._clock())
            self.changed()

    @property
    def waiting(self) -> tuple[bool, bool, bool]:
        """Whether there is something to say, to fetch, to push."""
        return bool(self._unsent) or bool(self._offers), bool(self._link.wanted), bool(self._pushes)

    def next_errand(self) -> Errand | None:
        """A fragment to fetch; None at the end, and without one."""
        with self.lock:
            return None if self.ended else self._link.errand()

    def postpone(self, errand: Errand) -> None:
        """A fetch that failed is tried again after the others."""
        with self.lock:
            self._link.postpone(errand)

    def put_arrival(self, errand: Errand, arrival: Arrival, head: FetchHead, seconds: float) -> None:
        """A fragment fetched in so many seconds, and what the shard said when it sent it."""
        with self.lock:
            self._share.fetched(seconds)
            self.counters.bytes_in += head.size
            self._link.counted(head.merged)
            if self._link.fetched(errand, arrival.version, head.cut):
                self._arrivals[errand.fragment] = arrival

    def next_push(self) -> tuple[PushHead, NDArray[Any]] | None:
        """A contribution to send; None at the end, and without one."""
        with self.lock:
            if self.ended or not self._pushes:
                return None
            self._pushing += 1
            return self._pushes.popleft()

    def is_open(self, round_id: RoundId) -> bool:
        """The round still wants contributions, as far as this host knows."""
        with self.lock:
            return round_id in self._link.open and not self.ended

    def count_push(self, head: PushHead, accepted: bool, seconds: float) -> None:
        """What became of it, and the seconds of the last attempt to send it; 0 where none was made."""
        p, size = head.round.fragment, head.size
        with self.lock:
            self._pushing -= 1
            if accepted:
                self._share.pushed(p, seconds)
            else:
                self._share.missed(p, seconds)
            self.counters.pushed += accepted
            self.counters.dropped += not accepted
            self.counters.bytes_out += size if accepted else 0

    def _welcomed(self, message: Welcome) -> None:
        self.counters.connections += 1
        self.welcome = self.welcome or message


def tell(link: Link, message: Down) -> bool:
    """What a shard's message says of fragments, rounds and cuts; of the rest nothing.

    True when what arrived before it is of a history that ended, see `Link.welcomed`.
    """
    match message:
        case Welcome():
            link.counted(message.merged)
            return link.welcomed(message.lineage, message.versions, message.least, message.cut)
        case Pull(round_id, least):
            link.asked(round_id, least)
        case Over(round_id):
            link.over(round_id)
        case Announce(p, version, needed):
            link.announced(p, version, needed)
        case Marker(cut):
            link.marked(cut)
    return False

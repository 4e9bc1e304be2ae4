"""What waits between the training loop and the network threads of a host. Every access is short and locked."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from atoll_runtime.sync.events import RoundId
from atoll_runtime.transport.messages import (
    Announce,
    Down,
    Fenced,
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


@dataclass(frozen=True)
class Errand:
    """A fragment to be fetched."""

    fragment: int
    version: int
    lineage: str


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
    """`limit`: contributions that may wait to be sent."""

    def __init__(self, versions: Sequence[int], limit: int) -> None:
        self.lock = threading.Condition()
        self.counters = Counters()
        self.welcome: Welcome | None = None
        self.stop: Stop | None = None
        self.error: Fenced | Refused | None = None
        self.report: Report | None = None
        self._limit = limit
        self._held = list(versions)
        """Version of each fragment that is here whole, taken or not."""
        self._adopted = list(versions)
        """Version of each fragment that the training loop has taken."""
        self._foreign: set[int] = set()
        """Fragments whose adopted version belongs to another lineage than the syncer's."""
        self._lineage = ""
        self._wanted: dict[int, int] = {}
        self._arrivals: dict[int, Arrival] = {}
        self._pulls: dict[int, Pull] = {}
        self._open: set[RoundId] = set()
        self._pushes: deque[tuple[PushHead, NDArray[Any]]] = deque()
        self._unsent = False
        self._closed = False

    @property
    def ended(self) -> bool:
        """Nothing more will be exchanged."""
        return self._closed or self.error is not None or self.stop is not None

    def close(self) -> None:
        with self.lock:
            self._closed = True
            self.lock.notify_all()

    def put_report(self, step: int, tokens: int, loss: float, step_seconds: float, cursor: int) -> None:
        """Adds a step to the sums; what was not sent yet is replaced."""
        with self.lock:
            steps, total = (self.report.steps, self.report.tokens) if self.report else (0, 0)
            self.report = Report(step, steps + 1, total + tokens, loss, step_seconds, cursor)
            self._unsent = True
            self.lock.notify_all()

    def take_arrivals(self) -> dict[int, Arrival]:
        """What arrived since the last call becomes the loop's anchor."""
        with self.lock:
            taken, self._arrivals = self._arrivals, {}
            self._foreign -= taken.keys()
            for p, arrival in taken.items():
                self._adopted[p] = arrival.version
            return taken

    def pulls(self) -> dict[int, Pull]:
        """Open rounds whose least anchor the loop has taken."""
        with self.lock:
            return {
                p: pull
                for p, pull in self._pulls.items()
                if p not in self._foreign and self._adopted[p] >= pull.least
            }

    def put_push(self, head: PushHead, part: NDArray[Any]) -> None:
        """Answers a pull; dropped and counted when its round is over or the queue is full."""
        p = head.round.fragment
        with self.lock:
            if p in self._pulls and self._pulls[p].round == head.round:
                del self._pulls[p]
            if head.round not in self._open or p in self._foreign or len(self._pushes) >= self._limit:
                self.counters.dropped += 1
                return
            self._pushes.append((head, part))
            self.lock.notify_all()

    def connect(self) -> tuple[int, ...]:
        """A session begins: the versions held; the last report is due again."""
        with self.lock:
            self._unsent = self.report is not None
            return tuple(self._held)

    def disconnect(self) -> None:
        """A session ended: its pulls are void; the next one brings them anew."""
        with self.lock:
            self._pulls.clear()
            self._open.clear()
            self.lock.notify_all()

    def next_report(self, over: threading.Event) -> Report | None:
        """Blocks for the next report of a session; None when the session is over."""

        def ended() -> bool:
            return self.ended or over.is_set()

        with self.lock:
            self.lock.wait_for(ended, REPORT_SECONDS)
            self.lock.wait_for(lambda: self._unsent or ended())
            self._unsent = False
            return None if ended() else self.report

    def deliver(self, message: Down) -> None:
        """A message of the syncer."""
        with self.lock:
            match message:
                case Welcome():
                    self._welcomed(message)
                case Pull():
                    self._pulls[message.fragment] = message
                    self._open.add(message.round)
                    self._want(message.fragment, message.least)
                case Over(round_id):
                    self._open.discard(round_id)
                    pull = self._pulls.get(round_id.fragment)
                    if pull is not None and pull.round == round_id:
                        del self._pulls[round_id.fragment]
                case Announce(p, version):
                    self._want(p, version)
                case Stop():
                    self.stop = message
                case Fenced() | Refused():
                    self.error = message
            self.lock.notify_all()

    def next_errand(self) -> Errand | None:
        """Blocks for a fragment to fetch; None at the end."""
        with self.lock:
            self.lock.wait_for(lambda: self._wanted or self.ended)
            if self.ended:
                return None
            p, version = next(iter(self._wanted.items()))
            return Errand(p, version, self._lineage)

    def put_arrival(self, errand: Errand, arrival: Arrival) -> None:
        """A fetched fragment; what belongs to a lineage that ended meanwhile is fetched again."""
        p = errand.fragment
        with self.lock:
            self.counters.bytes_in += arrival.part.nbytes
            if errand.lineage != self._lineage:
                return
            if self._wanted.get(p, 0) <= max(errand.version, arrival.version):
                self._wanted.pop(p, None)
            if arrival.version != self._held[p] or p in self._foreign:
                self._held[p] = arrival.version
                self._arrivals[p] = arrival

    def next_push(self) -> tuple[PushHead, NDArray[Any]] | None:
        """Blocks for a contribution to send; None at the end."""
        with self.lock:
            self.lock.wait_for(lambda: self._pushes or self.ended)
            return None if self.ended else self._pushes.popleft()

    def is_open(self, round_id: RoundId) -> bool:
        """The round still wants contributions, as far as this host knows."""
        with self.lock:
            return round_id in self._open and not self.ended

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
        # Versions of another lineage are other arrays: the syncer has lost its journal. The first
        # lineage that this host meets is the one that its seed came from.
        if self._lineage and self._lineage != message.lineage:
            self._foreign = set(range(len(self._held)))
            self._arrivals.clear()
        elif not self._lineage:
            self._foreign = {p for p, version in enumerate(message.versions) if self._held[p] > version}
        self._lineage = message.lineage
        for p, version in enumerate(message.versions):
            self._want(p, version)
        self.welcome = self.welcome or message

    def _want(self, p: int, version: int) -> None:
        if version > self._held[p] or p in self._foreign:
            self._wanted[p] = version

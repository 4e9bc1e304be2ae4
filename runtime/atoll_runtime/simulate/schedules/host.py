"""A learner host's end with one shard in simulated time: what `learner/mailbox.py` and `learner/wire.py` do."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from atoll_runtime.learner.mailbox import tell
from atoll_runtime.simulate.schedules.content import Delta, Value
from atoll_runtime.simulate.schedules.network import Channel
from atoll_runtime.simulate.schedules.scenario import Island
from atoll_runtime.simulate.schedules.shard import ShardProcess
from atoll_runtime.simulate.schedules.shardslot import ShardSlot
from atoll_runtime.simulate.schedules.surroundings import Reachable, Surroundings
from atoll_runtime.sync.events import NO_CUT, CutId, ShardClock
from atoll_runtime.sync.link import Errand, Link
from atoll_runtime.transport.messages import (
    PROTOCOL,
    Down,
    Fenced,
    FetchHead,
    Hello,
    Mark,
    PushHead,
    Refused,
    Report,
    Stop,
    Welcome,
)

BACKOFF_SECONDS = (0.2, 5.0)
PUSH_ATTEMPTS = 6


@dataclass(frozen=True)
class Arrived:
    """A version that was fetched, and the lineage that the host takes it to be of."""

    value: Value
    lineage: str


class World(Surroundings, Protocol):
    """What a host needs of the world."""

    shards: list[ShardSlot]

    def reachable(self, one: Reachable, other: Reachable) -> bool: ...


class Slot(Reachable, Protocol):
    """The unit of a host."""

    island: Island


class Unit(Protocol):
    """The incarnation of a host."""

    alive: bool
    incarnation: int
    seeded_step: int

    @property
    def name(self) -> str: ...
    @property
    def slot(self) -> Slot: ...
    @property
    def world(self) -> World: ...
    def heard(self, message: Down) -> None: ...


class HostLink:
    """Of one incarnation; connects again and again until it has a Stop, or is fenced."""

    def __init__(self, unit: Unit, host: int, shard: int, held: Sequence[Value], limit: int) -> None:
        self.unit, self.host, self.shard, self.world = unit, host, shard, unit.world
        self.link = Link([value.version for value in held], lineage=held[0].lineage)
        self.welcome: Welcome | None = None
        self.stop: Stop | None = None
        self.error: Fenced | Refused | None = None
        self.channel: Channel | None = None
        self._arrivals: dict[int, Arrived] = {}
        self._pushes: deque[tuple[PushHead, Delta]] = deque()
        self._limit = limit
        self._report: Report | None = None
        self._mark: Mark | None = None
        self._pushing = self._fetching = False
        self._dials = self._fetches = 0

    @property
    def ended(self) -> bool:
        return self.stop is not None or self.error is not None

    def dial(self) -> None:
        """Opens a session: who this is, then what was not heard of it yet."""
        slot = self.world.shards[self.shard]
        process = slot.process if self.world.reachable(self.unit.slot, slot) else None
        self.channel = Channel(self, process)
        self.channel.up(
            Hello(
                protocol=PROTOCOL,
                run_uid="run",
                unit=self.unit.name,
                incarnation=self.unit.incarnation,
                host=self.host,
                hosts=self.unit.slot.island.hosts,
                fingerprint="",
                codec="f32",
                versions=tuple(self.link.held),
                seeded_step=self.unit.seeded_step,
                seed_message="",
                cut=self._mark.cut if self._mark else NO_CUT,
            )
        )
        for message in (self._mark, self._report):
            if message is not None:
                self.channel.up(message)

    def lost(self, channel: Channel) -> None:
        """The session is over."""
        if channel is not self.channel:
            return
        self.channel = None
        self.link.disconnected()
        if not self.ended:
            self.world.at(self._pause(self._dials), self.unit, self.dial)
            self._dials += 1

    def receive(self, channel: Channel, message: Down) -> None:
        """A message of the shard."""
        if channel is not self.channel:
            return
        if self.world.tracing:
            self.world.log(f"{self.unit}/{self.host} < {self.shard}: {message}")
        link = self.link
        match message:
            case Welcome():
                self._dials = 0
                self.welcome = self.welcome or message
            case Stop():
                self.stop = message
            case Fenced() | Refused():
                self.error = message
        if tell(link, message):
            self._arrivals.clear()
        self.unit.heard(message)
        self._fetch()

    def cut(self) -> None:
        """Its session breaks, if it has one."""
        if self.channel is not None:
            self.channel.cut()

    def report(
        self, step: int, tokens: int, seconds: float, cursor: int, clocks: tuple[ShardClock, ...]
    ) -> None:
        """A step has ended."""
        steps, total = (self._report.steps, self._report.tokens) if self._report else (0, 0)
        self._report = Report(step, steps + 1, total + tokens, 1.0, seconds, cursor, clocks)
        if self.channel is not None:
            self.channel.up(self._report)

    def mark(self, cut: CutId, trained: int) -> None:
        """The unit has recorded itself."""
        self._mark = Mark(cut, trained)
        if self.channel is not None:
            self.channel.up(self._mark)

    def take_arrivals(self) -> dict[int, Arrived]:
        """What arrived since the last call."""
        taken, self._arrivals = self._arrivals, {}
        return taken

    def push(self, head: PushHead, delta: Delta) -> None:
        """Answers a pull, unless it comes too late."""
        if self.link.answered(head.round) and len(self._pushes) < self._limit:
            self._pushes.append((head, delta))
            self._next_push()

    def _next_push(self) -> None:
        if self._pushes and not self._pushing and not self.ended:
            self._pushing = True
            self._send(*self._pushes.popleft(), attempt=0)

    def _send(self, head: PushHead, delta: Delta, attempt: int) -> None:
        if attempt == PUSH_ATTEMPTS or head.round not in self.link.open or self.ended:
            self._pushing = False
            self._next_push()
            return
        world, process = self.world, self._transfer()
        if process is None:
            world.at(self._pause(attempt), self.unit, self._send, head, delta, attempt + 1)
        else:
            world.at(world.delay(), None, self._push_arrives, process, head, delta, attempt)

    def _push_arrives(self, process: ShardProcess, head: PushHead, delta: Delta, attempt: int) -> None:
        world = self.world
        if process.alive:
            refusal = process.admit(head)
            if process.alive and not refusal:
                world.at(world.delay(), process, process.deliver, head, delta)
            if process.alive and not world.chance(world.weather.loss):
                world.at(2 * world.delay(), self.unit, self._pushed)
                return
        world.at(self._pause(attempt), self.unit, self._send, head, delta, attempt + 1)

    def _pushed(self) -> None:
        self._pushing = False
        self._next_push()

    def _fetch(self) -> None:
        errand = self.link.errand()
        if errand is None or self._fetching or self.ended:
            return
        self._fetching = True
        world, process = self.world, self._transfer()
        if process is None:
            world.at(self._pause(self._fetches), self.unit, self._fetched, None)
        else:
            world.at(world.delay(), None, self._fetch_arrives, process, errand)

    def _fetch_arrives(self, process: ShardProcess, errand: Errand) -> None:
        world = self.world
        if process.alive and not world.chance(world.weather.loss):
            head, value = process.serve(errand.fragment)
            world.at(world.delay(), self.unit, self._fetched, (errand, head, value))
        else:
            world.at(self._pause(self._fetches), self.unit, self._fetched, None)

    def _fetched(self, reply: tuple[Errand, FetchHead, Value] | None) -> None:
        self._fetching = False
        self._fetches = 0 if reply else self._fetches + 1
        if reply is not None:
            errand, head, value = reply
            if self.world.tracing:
                self.world.log(f"{self.unit}/{self.host} fetched {value}")
            if self.link.fetched(errand, head.version, head.cut):
                self._arrivals[errand.fragment] = Arrived(value, errand.lineage)
        self._fetch()

    def _transfer(self) -> ShardProcess | None:
        """The process at the other end of a new transfer; None when it fails before it has any effect."""
        slot, world = self.world.shards[self.shard], self.world
        if not world.reachable(self.unit.slot, slot) or world.chance(world.weather.loss):
            return None
        return slot.process

    def _pause(self, attempt: int) -> float:
        first, longest = BACKOFF_SECONDS
        return float(min(longest, first * 2.0 ** min(attempt, 10)) * self.world.rng.uniform(0.5, 1.0))

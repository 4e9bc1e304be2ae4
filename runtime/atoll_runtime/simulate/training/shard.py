"""The syncer's one shard in simulated time: its own state machine, and real merges of real outer gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from atoll_runtime.contract import RunContract
from atoll_runtime.merge.gradients import MergeError
from atoll_runtime.merge.rda import merge_step
from atoll_runtime.simulate.fleet.scenario import Costs
from atoll_runtime.simulate.training.programs import Programs
from atoll_runtime.sync.events import (
    CutEnded,
    Event,
    Evict,
    Exclude,
    Left,
    Merge,
    Merged,
    MergeFailed,
    Persist,
    Persisted,
    Publish,
    RecordCut,
    Release,
    RoundId,
    SendMarkers,
    SendPull,
    Tick,
    Wake,
)
from atoll_runtime.sync.machine import Syncer
from atoll_runtime.sync.rules import Rules
from atoll_runtime.syncer import hosts
from atoll_runtime.syncer.parts import Held, Parts, gradients, read
from atoll_runtime.syncer.sessions import Session, Sessions
from atoll_runtime.syncer.state import State, Version
from atoll_runtime.transport.chunks import filled
from atoll_runtime.transport.messages import FetchHead, Hello, PushHead, Welcome

LINEAGE = "simulated"
UNLIMITED = 1 << 62
"""Bytes of contributions."""


class Surroundings(Protocol):
    """What the shard needs of the simulation."""

    run: RunContract
    programs: Programs
    costs: Costs
    now: float

    def at(self, when: float, what: Callable[..., None], *facts: object) -> None: ...
    def warmth(self, step: int) -> float: ...


class Shard:
    """Carries out what the machine asks for, as `syncer/driver.py` does."""

    def __init__(self, world: Surroundings) -> None:
        programs = self._programs = world.programs
        self._world, self._outer = world, world.run.outer
        # A learner that computes is never silent in simulated time.
        self.machine = Syncer.begin(
            replace(Rules.of(world.run), silence=UNLIMITED),
            tuple(fragment.size for fragment in programs.layout.fragments),
            [0] * len(programs.layout.fragments),
        )
        self.machine.rounds.lineage = LINEAGE
        self.state = State.from_tensors(
            programs.layout, self._outer.codec, programs.first, None, self.machine.versions, LINEAGE
        )
        self.saved: tuple[int, tuple[Version, ...]] = 0, self.state.snapshot()
        """The newest cut: its step and contents."""
        self.members = 0
        """Contributions merged."""
        self._sessions = Sessions()
        self._parts = Parts(UNLIMITED)
        self._fresh: dict[RoundId, Version] = {}
        self._free = 0.0
        self._wake = -1.0

    @property
    def finished(self) -> bool:
        """The target is reached, and no round is in flight."""
        return self.machine.finishing and not self.machine.rounds.held

    def greet(self, session: Session, hello: Hello) -> Welcome:
        """A learner connects."""
        self._sessions.add(session)
        self.feed(hosts.joined(hello))
        unit = self.machine.units[hello.unit]
        return Welcome(
            LINEAGE,
            self.machine.step,
            self.state.versions,
            self.machine.rounds.leasts(unit, self.machine.step),
            unit.merged_cursor,
            unit.merged_step,
            self.machine.cuts.newest,
            self.machine.tokens,
        )

    def leave(self, session: Session) -> None:
        """Its session broke."""
        if self._sessions.remove(session):
            self.feed(Left(session.unit, session.incarnation, session.host))

    def deliver(self, head: PushHead, body: memoryview) -> None:
        """A contribution has come whole."""
        part, fragment = hosts.part_of(head), self._programs.layout.fragments[head.round.fragment]
        if not (self.machine.admit(part) or self._parts.reserve(head)):
            self._parts.hold(Held(head, *read(fragment, head, body)))
        self.feed(part)

    def fetch(self, p: int, start: int, stop: int, held: int, series: str) -> tuple[FetchHead, memoryview]:
        """The newest durable version of a fragment, for one who has `held` of `series`."""
        version = self.state.fragments[p].version
        base, size, body = self.state.fetch(p, start, stop, held, series)
        cut, merged = self.machine.cuts.newest, self.machine.tokens
        return FetchHead(p, version, size, base, self.state.series, cut, merged), filled(body, size)

    def feed(self, event: Event) -> None:
        """One step of the machine."""
        world = self._world
        for effect in self.machine.handle(event, world.now):
            match effect:
                case SendPull() | Exclude() | Publish() | SendMarkers() | Evict():
                    self._sessions.carry_out(effect)
                case Release(round_id, unit):
                    self._parts.release(round_id, unit)
                    self._sessions.carry_out(effect)
                case Merge():
                    self._work(world.costs.merge, self._merge(effect))
                case Persist(round_id, _):
                    self._work(world.costs.write, Persisted(round_id))
                case RecordCut(cut):
                    self.saved = cut.step, self.state.snapshot()
                    world.at(world.now, self.feed, CutEnded(cut, whole=True))
                case Wake(at):
                    if at != self._wake:
                        self._wake = at
                        world.at(at, self._tick, at)

    def _merge(self, effect: Merge) -> Event:
        p, outer = effect.round.fragment, self._outer
        old = self.state.fragments[p]
        try:
            merged = merge_step(
                self._programs.layout.fragments[p],
                gradients(effect.members, self._parts.take(effect.round)),
                old.theta,
                old.momentum,
                codec=outer.codec,
                rule=outer.merge,
                learning_rate=outer.learning_rate * self._world.warmth(effect.round.step),
                outer_momentum=outer.momentum,
                guard=outer.guard,
            )
        except MergeError as error:
            return MergeFailed(effect.round, str(error))
        self._fresh[effect.round] = old.next(effect.round.step, merged, outer.codec)
        self.members += len(effect.members)
        return Merged(effect.round, self._world.now)

    def _work(self, seconds: float, event: Event) -> None:
        """Merges and writes are done by one worker, in order."""
        self._free = max(self._world.now, self._free) + seconds
        self._world.at(self._free, self._done, event)

    def _done(self, event: Event) -> None:
        if isinstance(event, Persisted):
            self.state.fragments[event.round.fragment] = self._fresh.pop(event.round)
        self.feed(event)

    def _tick(self, at: float) -> None:
        if at == self._wake:
            self._wake = -1.0
            self.feed(Tick())

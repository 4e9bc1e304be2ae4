"""One incarnation of a learner in simulated time: the order of `learner/loop.py`, a step at a time, without tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from atoll_runtime.protocol.events import Event, Offered, Part, Received, Reported
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.protocol.link import Errand, Link
from atoll_runtime.protocol.linkshare import LinkShare
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.progress import Progress
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.simulate.fleet.scenario import Life, Scenario, Wire
from atoll_runtime.simulate.fleet.speeds import Drift

TOKENS = 1000
"""Of an inner step: a learner's batch does not depend on its speed."""
SIZE = 1
"""Elements of a simulated fragment."""
FIRST_STEPS = 3
"""Inner steps until the syncer knows a learner's pace: the first is not reported, two reports make a pace."""


@dataclass
class Hours:
    """A unit's time, in seconds."""

    busy: float = 0.0
    """In inner steps that have ended."""
    idle: float = 0.0


class Surroundings(Protocol):
    """What a learner needs of the simulation."""

    scenario: Scenario
    syncer: Syncer
    durable: list[int]
    now: float

    def at(self, when: float, what: Callable[..., None], *facts: object) -> None: ...
    def feed(self, event: Event) -> None: ...
    def left(self, learner: Learner) -> None: ...


@dataclass
class Learner:
    """Drives the link and the counters that run in the pods."""

    world: Surroundings
    life: Life
    hours: Hours
    drift: Drift
    alive: bool = True
    steps: int = 0
    _waiting: float | None = None
    """Since when it makes no step."""
    _base: int | None = None
    """Global step at which its own step 0 lies, known from the first round it is asked for."""
    _newest: int = 0
    """The newest merge that it has taken."""
    _pushes: deque[Part] = field(default_factory=deque)
    """They go through the wire one after the other."""
    _pushing: Part | None = None
    """On the wire."""
    _begun: float = 0.0
    """When it was put there."""
    _fetching: set[int] = field(default_factory=set)
    """Fragments that were asked for."""
    _free: float = 0.0
    """When what was asked for so far has come through the wire."""
    _arrivals: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        syncer = self.world.syncer
        versions = list(self.world.durable)
        self.link = Link(versions)
        self.link.welcomed(syncer.rounds.lineage, versions, versions, NO_CUT)
        self.progress = Progress(versions, versions)
        self.share = LinkShare(len(versions))
        costs = self.world.scenario.costs
        self.wire = self.life.wire or Wire(costs.push, costs.fetch)
        self.share.round_trip = 2 * self.wire.delay

    def iterate(self) -> None:
        """Between two steps: answer, take what arrived, begin the next step."""
        if self._killed():
            return
        self._answer()
        self._receive()
        if self._ahead():
            self._wait()
            return
        self.rest()
        seconds = self.drift.next()
        self.world.at(self.world.now + seconds, self._finish, seconds)

    def end(self) -> None:
        """It was killed, or is fenced off."""
        self.alive = False
        self.rest()

    def rest(self) -> None:
        """Books a wait that ends now."""
        if self._waiting is not None:
            self.hours.idle += self.world.now - self._waiting
            self._waiting = None

    def pulled(self, round_id: RoundId, least: int) -> None:
        """A round is open."""
        self._later(self._pulled, round_id, least)

    def _pulled(self, round_id: RoundId, least: int) -> None:
        self.link.asked(round_id, least)
        self.share.asked(round_id.fragment, round_id.step, self.world.now)
        if self._base is None:
            self._base, self._newest = round_id.step - self.steps, round_id.step - 1
        self._stir()

    def announced(self, p: int, version: int, needed: bool) -> None:
        """A version can be fetched."""
        self._later(self._announced, p, version, needed)

    def _announced(self, p: int, version: int, needed: bool) -> None:
        self.link.announced(p, version, needed)
        self._fetch()

    def _later(self, what: Callable[..., None], *facts: object) -> None:
        """A message is under way for the wire's delay."""
        if self.wire.delay:
            self.world.at(self.world.now + self.wire.delay, what, *facts)
        else:
            what(*facts)

    def _answer(self) -> None:
        now = self.world.now
        for p, ask in self.link.answerable().items():
            queued = len(self._pushes) + (self._pushing is not None)
            if self._early(ask.round) or not self.share.ready(p, now, queued, self.link.wanted):
                continue
            offer = self.progress.offer(p, ask)
            if offer is None or not self.link.answered(ask.round):
                continue
            part = Part(
                unit=self.life.unit,
                incarnation=self.life.incarnation,
                host=0,
                hosts=1,
                round=ask.round,
                anchor=offer.anchor,
                steps=offer.steps,
                tokens=offer.tokens,
                cursor=self.steps,
                inner_step=self.steps,
                start=0,
                stop=SIZE,
                padded=SIZE,
                trained=offer.trained,
            )
            expected = min(self.share.seconds * (queued + 1), TRANSFER_SECONDS)
            self.share.joined(p, now)
            self.world.at(
                now + self.wire.delay, self.world.feed, Offered(part, expected, self.share.round_trip)
            )
            self._pushes.append(part)
            self._push()

    def over(self, round_id: RoundId) -> None:
        """A round needs nothing more of this unit; what it sends for it is broken off."""
        self.link.over(round_id)
        if self._pushing is not None and self._pushing.round == round_id:
            self.share.missed(round_id.fragment, self.world.now - self._begun)
            self._pushing = None
            self._push()

    def _push(self) -> None:
        """Sends the next contribution whose round still wants it."""
        while self._pushes and self._pushing is None:
            part = self._pushes.popleft()
            if part.round in self.link.open:
                self._pushing, self._begun = part, self.world.now
                self.world.at(self.wire.end(self._begun, self.wire.push), self._pushed, part)
            else:
                self.share.missed(part.round.fragment, 0.0)

    def _pushed(self, part: Part) -> None:
        if not self.alive or self._pushing is not part:
            return
        self._pushing = None
        self.share.pushed(part.round.fragment, self.world.now - self._begun)
        self._later(self.world.feed, Received(part, 1.0))
        self._push()

    def _receive(self) -> None:
        for p, version in self._arrivals.items():
            self.progress.adopt(p, version)
            self.link.adopt(p, version, self.link.lineage)
            self._newest = max(self._newest, version)
        self._arrivals.clear()

    def _finish(self, seconds: float) -> None:
        if not self.alive:
            return
        self.steps += 1
        self.hours.busy += seconds
        self.progress.step(TOKENS)
        if self.steps > 1:  # as the loop does: the first step's tokens go with the second's
            self._report(seconds)
        # What the report leads to at this very moment comes before the next step, as in `training/learner.py`.
        self.world.at(self.world.now, self._go_on)

    def _go_on(self) -> None:
        if self.alive:
            self.iterate()

    def _report(self, seconds: float) -> None:
        self.world.feed(
            Reported(
                unit=self.life.unit,
                incarnation=self.life.incarnation,
                host=0,
                step=self.steps,
                steps=self.steps,
                tokens=self.progress.trained,
                loss=0.0,
                step_seconds=seconds,
                cursor=self.steps,
            )
        )

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.world.now
            self._remind(self._waiting)

    def _remind(self, since: float) -> None:
        """One that waits must not be taken for silent."""
        if self.alive and self._waiting == since:
            if self.world.now > since:
                self._report(0.0)
            self.world.at(self.world.now + self.world.scenario.rules.silence / 2, self._remind, since)

    def _fetch(self) -> None:
        while len(self._fetching) < self.share.beside:
            errand = self.link.errand(self._fetching)
            if errand is None:
                break
            self._fetching.add(errand.fragment)
            begun = max(self.world.now + self.share.round_trip, self._free)
            self._free = self.wire.end(begun, self.wire.fetch)
            self.world.at(self._free, self._fetched, errand, begun)

    def _fetched(self, errand: Errand, begun: float) -> None:
        self._fetching.discard(errand.fragment)
        self.share.fetched(self.world.now - begun)
        version = self.world.durable[errand.fragment]
        if self.link.fetched(errand, version, NO_CUT):
            self._arrivals[errand.fragment] = version
            self._stir()
        self._fetch()

    def _stir(self) -> None:
        """One that waits looks again, once what happens now has happened."""
        if self._waiting is not None:
            self.world.at(self.world.now, self._look)

    def _look(self) -> None:
        if self._waiting is not None:
            self._go_on()

    def _killed(self) -> bool:
        last = self.life.last
        if last is None or all(round_id.step <= last for round_id in self.link.open):
            return False
        self.end()
        self.world.left(self)
        return True

    def _early(self, round_id: RoundId) -> bool:
        """A synchronous control has not made the round's step."""
        return self.world.scenario.waits and self._clock < round_id.step

    def _ahead(self) -> bool:
        """A synchronous control must wait for a merge."""
        if not self.world.scenario.waits:
            return False
        if self._base is None:
            return self.steps >= FIRST_STEPS
        rules = self.world.scenario.rules
        return self._clock >= self._newest + rules.overlap * -(-rules.interval // rules.fragments)

    @property
    def _clock(self) -> int:
        return self.steps + (self._base or 0)

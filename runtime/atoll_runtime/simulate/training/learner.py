"""One incarnation of a learner in simulated time: the training loop and the mailbox that run in the pods."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Protocol

from atoll_runtime.checkpoint.units import Moments
from atoll_runtime.contract import UnitContract
from atoll_runtime.learner.exchange import Arrival, Exchange
from atoll_runtime.learner.fragments import Fragments, wire_type
from atoll_runtime.learner.holdings import Holdings
from atoll_runtime.learner.loop import Loop, Start
from atoll_runtime.learner.snapshot import Snapshot, Snapshots
from atoll_runtime.simulate.fleet.speeds import Drift
from atoll_runtime.simulate.training.batches import Share
from atoll_runtime.simulate.training.forgetting import Forgetful
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.simulate.training.shard import LINEAGE, Shard
from atoll_runtime.simulate.training.shard import Surroundings as ShardSurroundings
from atoll_runtime.sync.events import NO_CUT, Marked
from atoll_runtime.sync.fragments import Array, Layout
from atoll_runtime.sync.link import Errand
from atoll_runtime.syncer import hosts
from atoll_runtime.syncer.sessions import Session
from atoll_runtime.transport import codecs
from atoll_runtime.transport.messages import PROTOCOL, Down, Hello, Mark, Offer, PushHead, Report


@dataclass
class Island:
    """A learner through all its incarnations."""

    name: str
    number: int
    drift: Drift
    keeps: bool
    """A new incarnation gets the moments of the last save."""
    moments: Moments | None = None
    incarnations: int = 0
    tokens: int = 0
    """Of steps that have ended."""

    def save(self, moments: Moments) -> None:
        """What its next incarnation begins with."""
        if self.keeps:
            self.moments = moments


class Surroundings(ShardSurroundings, Protocol):
    """What a learner needs of the simulation."""

    setting: Setting
    shard: Shard


class Learner(Session):
    """From its seeding to its loss, or the run's end."""

    def __init__(self, world: Surroundings, island: Island, incarnation: int) -> None:
        super().__init__(island.name, incarnation, 0)
        self._world, self._island, self.alive = world, island, True
        run, programs = world.run, world.programs
        step, versions = world.shard.saved
        theta: dict[str, Array] = {}
        for p, version in enumerate(versions):
            programs.layout.unflatten(p, version.theta, theta)
        held = tuple(version.version for version in versions)
        number, moments = island.number, island.moments
        inner = programs.inner.twin(theta, moments, number)
        kind = Forgetful if world.setting.forget else Fragments
        fragments = kind(programs.mesh, programs.layout, wire_type(run.outer.codec), inner.theta)
        if isinstance(fragments, Forgetful):
            fragments.inner = inner
        contract = UnitContract(
            unit=self.unit,
            incarnation=incarnation,
            host=0,
            hosts=1,
            coordinator="simulated:1",
            batch=inner.batch,
            stream=number,
            streams=world.setting.learners,
        )
        self._bounds = fragments.bounds
        self._holdings = Holdings(run.outer.codec, fragments.bounds)
        exchange = Exchange(
            run, contract, programs.layout, fragments.bounds, fragments.padded, clock=lambda: world.now
        )
        self._box = exchange.open(held, [LINEAGE])[0]
        self._ends = self._pushed = world.now
        self._fetching = False
        hello = Hello(
            PROTOCOL,
            run.uid,
            self.unit,
            incarnation,
            0,
            1,
            programs.layout.fingerprint,
            run.outer.codec,
            held,
            step,
            "",
            NO_CUT,
            "",
        )
        self.send(world.shard.greet(self, hello))
        greeting = exchange.welcome(0.0)
        assert greeting is not None
        start = Start(
            held,
            greeting.versions,
            greeting.global_step,
            greeting.inner_step,
            greeting.cursor,
            greeting.merged,
            cold=moments is None and greeting.global_step > 0,
        )
        sizes = [fragment.size for fragment in programs.layout.fragments]
        self.loop = Loop(
            run,
            inner,
            fragments,
            exchange,
            programs.agreement,
            Share(
                programs.train, run.data.seed, number, world.setting.learners, inner.batch, greeting.cursor
            ),
            start,
            threading.Event(),
            Snapshots(sizes, start.targets, self._save),
            clock=lambda: self._ends,
        )

    def send(self, message: Down | None) -> None:
        """The syncer tells it something; it is there at once."""
        if message is not None and self.alive:
            self._box.deliver(message)
            self._fetch()

    def advance(self) -> None:
        """Begins an inner step: its work is done now, its end is reported when it has lasted."""
        world, run = self._world, self._world.run
        self._ends = world.now + self._island.drift.next()
        self.loop.advance()
        while (push := self._box.next_push()) is not None:
            head, part = push
            body = codecs.pack(part, run.outer.codec)
            self._pushed = max(self._pushed, world.now) + world.costs.push
            world.at(self._pushed, self._deliver, head, body)
        while (message := self._box.next_up()) is not None:
            world.at(world.now if isinstance(message, Mark) else self._ends, self._tell, message)
        world.at(self._ends, self._ended)

    def lose(self) -> None:
        """It is gone in the middle of a step."""
        self.alive = False
        self._world.shard.leave(self)

    def _ended(self) -> None:
        """A step has ended; the next one begins."""
        if self.alive:
            self._island.tokens += self.loop.inner.tokens
            self.advance()

    def _deliver(self, head: PushHead, body: memoryview) -> None:
        if self.alive:
            self._box.count_push(head, True, self._world.costs.push)
            self._world.shard.deliver(head, body)

    def _tell(self, message: Report | Mark | Offer) -> None:
        """The header of a contribution comes with its body."""
        if not self.alive or isinstance(message, Offer):
            return
        if isinstance(message, Mark):
            self._world.shard.feed(Marked(self.unit, self.incarnation, 0, message.cut, message.trained))
        else:
            self._world.shard.feed(hosts.reported(self, message))

    def _fetch(self) -> None:
        """One fragment at a time, as the real link does."""
        errand = None if self._fetching else self._box.next_errand()
        if errand is not None:
            self._fetching = True
            self._world.at(self._world.now + self._world.costs.fetch, self._fetched, errand)

    def _fetched(self, errand: Errand) -> None:
        self._fetching = False
        if not self.alive:
            return
        p = errand.fragment
        held = self._holdings.of(p)
        head, body = self._world.shard.fetch(p, *self._bounds[p], held.version, held.series)
        arrival = Arrival(head.version, self._holdings.take(head, body), errand.lineage)
        self._box.put_arrival(errand, arrival, head, self._world.costs.fetch)
        self._fetch()

    def _save(self, snapshot: Snapshot) -> None:
        """The unit's save for a cut stands in the bucket."""
        self._island.save(moments_of(snapshot, self._world.programs.layout))


def moments_of(snapshot: Snapshot, layout: Layout) -> Moments:
    """Whole tensors from a snapshot's fragments."""
    found = Moments({}, {}, snapshot.count)
    for capture in snapshot.captures:
        size = layout.fragments[capture.number].size
        layout.unflatten(capture.number, capture.mu[:size], found.mu)
        layout.unflatten(capture.number, capture.nu[:size], found.nu)
    return found

"""A learner unit in simulated time: seeds, connects, and runs the inner loop as `learner/loop.py` does."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from atoll_runtime.learner.exchange import Arrival
from atoll_runtime.learner.proposal import Ending, Proposal
from atoll_runtime.simulate.schedules.bucket import WholeCut
from atoll_runtime.simulate.schedules.content import Delta, Value
from atoll_runtime.simulate.schedules.host import Arrived, HostLink, World
from atoll_runtime.simulate.schedules.scenario import Island
from atoll_runtime.sync.events import CutId
from atoll_runtime.sync.link import Ask
from atoll_runtime.sync.progress import Offer, Progress
from atoll_runtime.transport.messages import Down, Fenced, PushHead, Stop, Welcome

SEED_SECONDS = 0.5
WELCOME_SECONDS = 5.0
PADDED = 12
NO_ARRAY = np.empty(0, np.float32)


@dataclass
class UnitSlot:
    """A unit through all its incarnations."""

    world: World
    island: Island
    incarnation: int = 0
    processes: list[UnitProcess] = field(default_factory=list)
    """Alive; the last one is the newest incarnation's, unless it is dead."""
    stopped: bool = False
    """An incarnation has left because the run was finished."""
    cut_off_until: float = 0.0

    @property
    def name(self) -> str:
        return self.island.name

    @property
    def running(self) -> bool:
        return any(process.incarnation == self.incarnation for process in self.processes)

    def start(self) -> None:
        """The next incarnation; an older one that still runs goes on until it is fenced."""
        self.incarnation += 1
        process = UnitProcess(self)
        self.processes.append(process)
        process.seed()

    def kill(self) -> None:
        for process in list(self.processes):
            process.die()


class UnitProcess:
    """One incarnation: all hosts of it, which step together."""

    def __init__(self, slot: UnitSlot) -> None:
        self.slot, self.world, self.alive = slot, slot.world, True
        self.incarnation = slot.incarnation
        self.links: list[list[HostLink]] = []
        """By host and shard."""
        self.seeded_step = 0
        self.begun, self.began = False, 0.0
        """It trains, and since when."""
        self.steps = self.trained = 0
        """Of this incarnation, as it knows itself."""
        self.anchors: list[Value] = []
        self.starts: list[int] = []
        """What host 0 holds of each fragment, and how much the unit had trained when it took that."""
        self._others: list[list[Value]] = []
        """What every host holds: for a while it may be of two lineages."""
        self._arrivals: list[dict[int, Arrived]] = [{} for _ in range(slot.island.hosts)]
        self._step = self._cursor = self._unreported = 0

    def __str__(self) -> str:
        return f"{self.slot.name}.{self.incarnation}"

    @property
    def name(self) -> str:
        return self.slot.name

    @property
    def who(self) -> tuple[str, int]:
        return self.slot.name, self.incarnation

    def die(self) -> None:
        """Its sessions break; what it had sent may still arrive."""
        self.world.log(f"{self} ends")
        self.world.checks.left(self)
        self.alive = False
        self.slot.processes.remove(self)
        for link in (link for host in self.links for link in host):
            if link.channel is not None:
                link.channel.cut()

    def seed(self) -> None:
        """Takes the newest whole cut, and connects to every shard."""
        cut = self.world.bucket.newest()
        if cut is None or self.world.chance(self.world.weather.bucket):
            self.world.at(SEED_SECONDS, self, self.seed)
        else:
            self.world.at(self.world.delay(), self, self._connect, cut)

    def heard(self, message: Down) -> None:
        """A shard has answered."""
        if isinstance(message, Welcome | Stop | Fenced) and not self.begun:
            self._begin(at_once=False)

    def _connect(self, cut: WholeCut) -> None:
        width, shards = self.world.scenario.rules.fragments, self.world.scenario.rules.shards
        self.seeded_step, self.anchors = cut.step, list(cut.values)
        self.starts = [0] * len(cut.values)
        self._others = [list(cut.values) for _ in range(self.slot.island.hosts)]
        limit = 2 * self.world.scenario.rules.overlap
        self.links = [
            [HostLink(self, h, s, self.anchors[s * width : (s + 1) * width], limit) for s in range(shards)]
            for h in range(self.slot.island.hosts)
        ]
        for value in cut.values:
            self.world.checks.seen(value)
        for link in (link for host in self.links for link in host):
            self.world.at(self.world.delay(), self, link.dial)
        self.world.at(WELCOME_SECONDS, self, self._begin, True)

    def _begin(self, at_once: bool) -> None:
        """Trains on from what host 0 was told; after some time, from what the cut tells."""
        first = self.links[0]
        if self.begun or not (at_once or all(link.welcome is not None or link.ended for link in first)):
            return
        targets: list[int] = []
        for link in first:
            targets += link.link.held if link.welcome is None else link.welcome.versions
        welcomes = [link.welcome for link in first if link.welcome is not None]
        self._step = max((welcome.inner_step for welcome in welcomes), default=0)
        self._cursor = max((welcome.cursor for welcome in welcomes), default=0)
        self.progress = Progress([value.version for value in self.anchors], targets)
        self.begun, self.began = True, self.world.now
        self.world.checks.begun(self)
        self._iterate()

    def _iterate(self) -> None:
        """Between two steps: agree, record, extract, receive, send; then the next step."""
        agreed = self._agree()
        if agreed.ending is not Ending.NONE:
            self.slot.stopped = self.slot.stopped or agreed.ending is Ending.STOPPED
            self.die()
            return
        self._record(agreed.cut)
        parcels = self._extract(agreed.pulls)
        self._receive(list(agreed.arrivals))
        for parcel in parcels:
            self._send(*parcel)
        self.world.at(self.slot.island.pace, self, self._finish)

    def _agree(self) -> Proposal:
        """What all hosts can do now."""
        proposals = []
        for host, links in enumerate(self.links):
            pulls: dict[int, Ask] = {}
            for s, link in enumerate(links):
                for p, arrived in link.take_arrivals().items():
                    self._arrivals[host][self._number(s, p)] = arrived
                pulls |= {self._number(s, p): ask for p, ask in link.link.answerable().items()}
            arrivals = {
                n: Arrival(arrived.value.version, NO_ARRAY, arrived.lineage)
                for n, arrived in self._arrivals[host].items()
            }
            cut = max(link.link.cut for link in links)
            proposals.append(Proposal(arrivals, pulls, cut, ending=ending(links)))
        if len(proposals) == 1:
            return proposals[0]
        values = np.array([proposal.values(len(self.anchors)) for proposal in proposals])
        return proposals[0].agreed(values.min(axis=0), values.max(axis=0))

    def _record(self, cut: CutId) -> None:
        if self.progress.see(cut):
            self.world.log(f"{self} records itself for {cut} at {self.trained}")
            self.world.checks.marked(self, cut)
            for link in (link for host in self.links for link in host):
                link.mark(cut, self.progress.trained)

    def _extract(self, pulls: dict[int, Ask]) -> list[tuple[int, Ask, Offer, list[Delta]]]:
        parcels = []
        for number, ask in pulls.items():
            offer = self.progress.offer(number, ask)
            if offer is not None:
                start, stop = self.starts[number], self.trained
                deltas = [Delta(self.who, held[number], start, stop) for held in self._others]
                parcels.append((number, ask, offer, deltas))
        return parcels

    def _receive(self, numbers: list[int]) -> None:
        for number in numbers:
            arrived = [arrivals[number] for arrivals in self._arrivals]
            values = [arrivals.pop(number).value for arrivals in self._arrivals]
            s, p = divmod(number, self.world.scenario.rules.fragments)
            for links in self.links:
                links[s].link.adopt(p, values[0].version, arrived[0].lineage)
            self.world.checks.adopted(self, number, values[0])
            self.progress.adopt(number, values[0].version)
            self.anchors[number], self.starts[number] = values[0], self.trained
            for held, value in zip(self._others, values, strict=True):
                held[number] = value

    def _send(self, number: int, ask: Ask, offer: Offer, deltas: list[Delta]) -> None:
        hosts = self.slot.island.hosts
        s, _p = divmod(number, self.world.scenario.rules.fragments)
        share = PADDED // hosts
        for host, links in enumerate(self.links):
            head = PushHead(
                unit=self.slot.name,
                incarnation=self.incarnation,
                host=host,
                hosts=hosts,
                round=ask.round,
                anchor=offer.anchor,
                steps=offer.steps,
                tokens=offer.tokens,
                cursor=self._cursor,
                inner_step=self._step,
                start=host * share,
                stop=(host + 1) * share,
                padded=PADDED,
                trained=offer.trained,
                codec="f32",
                size=0,
                cut=offer.cut,
            )
            links[s].push(head, deltas[host])

    def _finish(self) -> None:
        """A step has ended; the first is reported with the second."""
        tokens = self.slot.island.tokens
        self._step += 1
        self._cursor += 1
        self.steps += 1
        self.trained += tokens
        self.progress.step(tokens)
        self._unreported += tokens
        if self.steps > 1:
            for links in self.links:
                clocks = tuple(link.link.clock for link in links) if len(links) > 1 else ()
                for link in links:
                    link.report(self._step, self._unreported, self.slot.island.pace, self._cursor, clocks)
            self._unreported = 0
        self._iterate()

    def _number(self, s: int, p: int) -> int:
        return s * self.world.scenario.rules.fragments + p


def ending(links: list[HostLink]) -> Ending:
    """Why a host would end."""
    if any(link.error is not None for link in links):
        return Ending.FENCED
    return Ending.STOPPED if all(link.stop is not None for link in links) else Ending.NONE

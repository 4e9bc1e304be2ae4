"""Learners of given speeds and the syncer's own state machine, in simulated time and without tensors.

The machine (`protocol.machine`), a learner's link (`protocol.link`) and its counters (`protocol.progress`) are those
that run in the pods; here are only the clock, the time that things take, and who comes and goes.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from numpy.random import Generator

from atoll_runtime.protocol.effects import (
    Evict,
    Exclude,
    Member,
    Merge,
    Persist,
    Publish,
    Release,
    SendPull,
    Wake,
)
from atoll_runtime.protocol.events import Event, Joined, Left, Merged, Persisted, Tick
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.ledger import Account
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.simulate.fleet.learner import SIZE, Hours, Learner
from atoll_runtime.simulate.fleet.scenario import Life, Scenario
from atoll_runtime.simulate.fleet.speeds import Drift

EVENTS_PER_STEP = 40
"""Events of a learner in the time of one of its steps, at most. About 5 are usual; so many mean that nothing moves."""
FIRST_EVENTS = 1000
"""On top of that: a start takes some, however short the run."""


@dataclass(frozen=True)
class Decision:
    """A durable merge."""

    seconds: float
    round: RoundId
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Outcome:
    """A whole run in a few numbers. Shares are of all tokens trained."""

    seconds: float
    merges: int
    goodput: float
    """Share of the learners' time that was spent in inner steps."""
    merged_share: float
    discarded: Mapping[str, float]
    """By reason, as the ledger names them."""
    in_flight: float
    """Not decided yet when the run ended."""
    mean_members: float
    """Learners in a merge."""
    real_interval: float | None
    """H as measured: a learner's inner steps between two merges of a fragment."""
    staleness: float
    """Mean global steps between a contribution's anchor and its merge."""


class Stalled(RuntimeError):
    """The target is out of reach: too few learners are left for the quorum, or none makes a step."""


class World:
    """One run of a scenario. Iterate over `decisions` once; the rest tells what it has come to."""

    def __init__(self, scenario: Scenario, rng: Generator) -> None:
        rules = scenario.rules
        self.scenario, self.now = scenario, 0.0
        self.syncer = begin(rules, (SIZE,) * rules.fragments, [0] * rules.fragments)
        self.durable = [0] * rules.fragments
        """Version of each fragment that is announced."""
        self.hours = {life.unit: Hours() for life in scenario.lives}
        self._rng = rng
        self._learners: dict[str, Learner] = {}
        self._frozen: dict[RoundId, tuple[Member, ...]] = {}
        self._made: list[Decision] = []
        self._queue: list[tuple[float, int, Callable[..., None], Any]] = []
        self._order = count()
        self._free = 0.0
        """When the syncer's worker has done what it was given."""
        self._wake = -1.0

    @property
    def accounts(self) -> dict[str, Account]:
        """The syncer's own ledger, by unit."""
        return {name: unit.account for name, unit in self.syncer.units.items()}

    def decisions(self) -> Iterator[Decision]:
        """Every merge as it becomes durable, until the target is reached and no round is in flight.

        Raises:
            Stalled: the target is out of reach.
        """
        steps = self.scenario.rules.target_steps or 0
        # A stream of chance for each, so that learners keep their paces when only a policy changes.
        for life, rng in zip(self.scenario.lives, self._rng.spawn(len(self.scenario.lives)), strict=True):
            self.at(life.begins, self._begin, life, rng)
        for _ in range(self._most_events(steps)):
            if not self._queue or (self.syncer.finishing and not self.syncer.rounds.held):
                break
            self.now, _, what, facts = heapq.heappop(self._queue)
            what(*facts)
            yield from self._made
            self._made.clear()
        if not self.syncer.finishing:
            raise Stalled(f"at {self.now:.0f} s the clock stands at {self.syncer.step} of {steps} steps")
        for learner in self._learners.values():
            learner.rest()

    def at(self, when: float, what: Callable[..., None], *facts: object) -> None:
        """Calls `what` at that time; in the order of calls, where times are the same."""
        heapq.heappush(self._queue, (when, next(self._order), what, facts))

    def feed(self, event: Event) -> None:
        """Hands an event to the syncer's machine, and carries out what it asks for."""
        for effect in self.syncer.handle(event, self.now):
            match effect:
                case SendPull(round_id, unit, least):
                    self._learners[unit].pulled(round_id, least)
                case Release(round_id, None):
                    for learner in self._learners.values():
                        learner.over(round_id)
                case Merge(round_id, members):
                    self._frozen[round_id] = members
                    self._work(self.scenario.costs.merge, Merged(round_id, self.now))
                case Persist(round_id, _):
                    self._work(self.scenario.costs.write, Persisted(round_id))
                case Release(round_id, str() as unit) if unit in self._learners:
                    self._learners[unit].over(round_id)
                case Exclude(round_id, members):
                    for unit, learner in self._learners.items():
                        if unit not in members:
                            learner.over(round_id)
                case Publish(p, version, needed):
                    self.durable[p] = version
                    for unit, learner in self._learners.items():
                        learner.announced(p, version, unit in needed)
                case Evict(unit, newest):
                    older = self._learners.get(unit)
                    if older is not None and older.life.incarnation < newest:
                        older.end()
                        del self._learners[unit]
                case Wake(at):
                    if at != self._wake:
                        self._wake = at
                        self.at(at, self._tick, at)
        if isinstance(event, Persisted):
            self._made.append(Decision(self.now, event.round, self._frozen.pop(event.round)))

    def left(self, learner: Learner) -> None:
        """It was killed: its session breaks."""
        life = learner.life
        del self._learners[life.unit]
        self.feed(Left(life.unit, life.incarnation, 0))

    def _begin(self, life: Life, rng: Generator) -> None:
        self.feed(Joined(life.unit, life.incarnation, 0, 1, self.syncer.step, ""))
        drift = Drift(life.pace, self.scenario.jitter, self.scenario.drift_steps, rng)
        learner = self._learners[life.unit] = Learner(self, life, self.hours[life.unit], drift)
        learner.iterate()

    def _most_events(self, steps: int) -> int:
        lives = self.scenario.lives
        seconds = steps * max(life.pace for life in lives) + max(life.begins for life in lives)
        return FIRST_EVENTS + int(sum(EVENTS_PER_STEP * seconds / life.pace for life in lives))

    def _work(self, seconds: float, event: Event) -> None:
        """Merges and writes are done by one worker, in order."""
        self._free = max(self.now, self._free) + seconds
        self.at(self._free, self.feed, event)

    def _tick(self, at: float) -> None:
        if at == self._wake:
            self._wake = -1.0
            self.feed(Tick())


def outcome(scenario: Scenario, rng: Generator) -> Outcome:
    """Runs the scenario to its end.

    Raises:
        Stalled: the target is out of reach.
    """
    world = World(scenario, rng)
    merges = contributions = age = 0
    for decision in world.decisions():
        merges += 1
        contributions += len(decision.members)
        age += sum(decision.round.step - member.anchor for member in decision.members)
    accounts, hours = world.accounts.values(), world.hours.values()
    trained = sum(account.trained for account in accounts)
    discarded = Counter[str]()
    for account in accounts:
        discarded.update(account.discarded)
    busy = sum(each.busy for each in hours)
    return Outcome(
        seconds=world.now,
        merges=merges,
        goodput=busy / (busy + sum(each.idle for each in hours)),
        merged_share=sum(account.merged for account in accounts) / trained,
        discarded={reason: tokens / trained for reason, tokens in sorted(discarded.items())},
        in_flight=sum(account.in_flight for account in accounts) / trained,
        mean_members=contributions / merges,
        real_interval=world.syncer.rounds.interval.value,
        staleness=age / contributions,
    )

"""Units on unequal links: how often each is a member of a round, and how much of its work is merged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from numpy.random import Generator

from atoll_runtime.contract import Codec, CommunicationSpec, GraceSpec
from atoll_runtime.protocol.communication import BITS, GOAL, Communication, streams
from atoll_runtime.simulate.blank import ADAPTIVE
from atoll_runtime.simulate.fleet.rounds import World
from atoll_runtime.simulate.fleet.scenario import Scenario, Unit, simulated_rules
from atoll_runtime.simulate.link import Wire
from atoll_runtime.simulate.shard import Costs
from atoll_runtime.simulate.wan.traffic import GIGA

WARM_UP = 2
"""Intervals at the beginning that are not counted: links are not measured yet."""
MERGE_STEPS = 0.02
"""Steps that a merge takes, and writing it."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """What is asked."""

    gbps: Sequence[float]
    """Of each unit's link, in each direction."""
    params: float
    step_seconds: Sequence[float]
    """Of each unit."""
    fragments: int
    interval: int
    overlap: int = 2
    codec: Codec = "bf16"
    """The widest that units use."""
    communication: CommunicationSpec = ADAPTIVE
    """What is fixed; each unit chooses the rest."""
    quorum: int = 1
    delay: float = 0.0
    """Seconds, one way."""
    outages: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By unit, from when until when, in seconds since the run began."""
    steps: int = 600
    """Global steps."""

    def need_gbps(self, used: Communication) -> float:
        """Gbit/s with which a unit that communicates so is a member of every round. The slowest unit sets the syncer's
        clock."""
        return self.params * max(used.bits) / (self.interval * max(self.step_seconds) * GIGA)

    @property
    def fragment_seconds(self) -> tuple[float, ...]:
        """Of one transfer of a fragment in the widest codec, by unit."""
        bits = self.params * BITS[self.codec] / self.fragments
        return tuple(bits / (each * GIGA) for each in self.gbps)


@dataclass(frozen=True, kw_only=True)
class UnitOnLink:
    """What became of one unit. Shares are of what came after the warm-up. Its link is used so at the end."""

    need_gbps: float
    """With which it would be a member of every round."""
    member_share: float
    """Of rounds."""
    merged_share: float
    """Of the tokens that it trained on, those that were merged. The rest is under way at the end, or came too late."""
    hidden_share: float
    """Of its time, what it spent in inner steps: it never waits for its link."""
    codec: str
    streams: int
    """That its link would be given."""
    period: float
    """It takes part in one of so many rounds."""
    rounds: int
    """Of which it was a member."""
    advice: str
    """What would make it a member of every round; empty where its link carries all."""


def on_links(asked: Links, rng: Generator) -> tuple[tuple[UnitOnLink, ...], float]:
    """What becomes of each unit, by the syncer's and the learner's own rules; and goodput: the share of all units' time
    in inner steps.

    Raises:
        Stalled: the target is out of reach.
    """
    names = [f"unit-{i:04}" for i in range(len(asked.gbps))]
    world = World(_scenario(asked, names), rng)
    first = WARM_UP * asked.interval
    members: Counter[str] = Counter()
    rounds = 0
    before = dict.fromkeys(names, (0, 0))
    for round_id, taken in world.merges():
        if round_id.step > first:
            rounds += 1
            members.update(member.unit for member in taken)
        else:
            before |= {name: _merged(world, name) for name in names if name in world.accounts}
    busy, all_time, units = 0.0, 0.0, []
    for name, gbps in zip(names, asked.gbps, strict=True):
        merged, trained = _merged(world, name)
        merged, trained = merged - before[name][0], trained - before[name][1]
        learner = world.learners[name]
        hours, used = learner.hours, learner.client.communication
        time = hours.busy + hours.idle
        busy, all_time = busy + hours.busy, all_time + time
        units.append(
            UnitOnLink(
                need_gbps=asked.need_gbps(used),
                member_share=members[name] / rounds,
                merged_share=min(1.0, merged / trained) if trained else 0.0,
                hidden_share=hours.busy / time if time else 0.0,
                codec=used.codec,
                # Transfers in simulated time carry no bytes to speak of.
                streams=streams(1, gbps * GIGA, 2 * asked.delay),
                period=used.period,
                rounds=members[name],
                advice=_advice(asked, gbps, used),
            )
        )
    return tuple(units), busy / all_time


def _scenario(asked: Links, names: Sequence[str]) -> Scenario:
    rules = simulated_rules(
        fragments=asked.fragments,
        interval=asked.interval,
        overlap=asked.overlap,
        quorum=asked.quorum,
        grace=GraceSpec(),
        steps=asked.steps,
    )
    units = tuple(
        Unit(name, step, Wire(seconds, seconds, asked.delay, tuple(asked.outages.get(i, ())), asked.codec))
        for i, (name, step, seconds) in enumerate(
            zip(names, asked.step_seconds, asked.fragment_seconds, strict=True)
        )
    )
    work = MERGE_STEPS * max(asked.step_seconds)
    costs = Costs(merge=work, write=work)
    return Scenario(rules, units, costs=costs, codec=asked.codec, communication=asked.communication)


def _advice(asked: Links, gbps: float, used: Communication) -> str:
    """What carries every round over this link; empty where what is used does."""
    if used.advice or asked.need_gbps(used) <= gbps:
        return used.advice
    seconds = BITS["int4"] * asked.params / (gbps * GIGA)
    return f"outer.interval: {math.ceil(seconds / (GOAL * max(asked.step_seconds)))}"


def _merged(world: World, name: str) -> tuple[int, int]:
    """Tokens merged and trained so far, in token-fragments."""
    account = world.accounts[name]
    return account.merged, account.trained

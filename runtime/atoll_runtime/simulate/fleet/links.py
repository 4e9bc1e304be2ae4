"""Units on unequal links: how often each is a member of a round, and how much of its work is merged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from numpy.random import Generator

from atoll_runtime.contract import GraceSpec
from atoll_runtime.simulate.fleet.rounds import World
from atoll_runtime.simulate.fleet.scenario import Costs, Scenario, Unit, simulated_rules
from atoll_runtime.simulate.link import Wire
from atoll_runtime.simulate.wan.traffic import CODEC_BITS, GIGA

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
    codec: str = "bf16"
    quorum: int = 1
    delay: float = 0.0
    """Seconds, one way."""
    outages: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By unit, from when until when, in seconds since the run began."""
    steps: int = 600
    """Global steps."""

    @property
    def need_gbps(self) -> float:
        """Gbit/s with which a unit is a member of every round. The slowest unit sets the syncer's clock."""
        return self.params * CODEC_BITS[self.codec] / (self.interval * max(self.step_seconds) * GIGA)

    @property
    def fragment_seconds(self) -> tuple[float, ...]:
        """Of one transfer of a fragment, by unit."""
        bits = self.params * CODEC_BITS[self.codec] / self.fragments
        return tuple(bits / (each * GIGA) for each in self.gbps)


@dataclass(frozen=True, kw_only=True)
class UnitOnLink:
    """What became of one unit. Shares are of what came after the warm-up."""

    member_share: float
    """Of rounds."""
    merged_share: float
    """Of the tokens that it trained on, those that were merged. The rest is under way at the end, or came too late."""
    hidden_share: float
    """Of its time, what it spent in inner steps: it never waits for its link."""
    rounds: int
    """Of which it was a member."""


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
    hours, busy, all_time = world.hours, 0.0, 0.0
    units = []
    for name in names:
        merged, trained = _merged(world, name)
        merged, trained = merged - before[name][0], trained - before[name][1]
        time = hours[name].busy + hours[name].idle
        busy, all_time = busy + hours[name].busy, all_time + time
        units.append(
            UnitOnLink(
                member_share=members[name] / rounds,
                merged_share=min(1.0, merged / trained) if trained else 0.0,
                hidden_share=hours[name].busy / time if time else 0.0,
                rounds=members[name],
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
        Unit(name, step, Wire(seconds, seconds, asked.delay, tuple(asked.outages.get(i, ()))))
        for i, (name, step, seconds) in enumerate(
            zip(names, asked.step_seconds, asked.fragment_seconds, strict=True)
        )
    )
    work = MERGE_STEPS * max(asked.step_seconds)
    return Scenario(rules, units, costs=Costs(merge=work, write=work))


def _merged(world: World, name: str) -> tuple[int, int]:
    """Tokens merged and trained so far, in token-fragments."""
    account = world.accounts[name]
    return account.merged, account.trained

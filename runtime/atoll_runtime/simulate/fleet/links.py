"""Simulates units on unequal links: how often each is a member of a round, and how much of its work is merged."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atoll_runtime.contract import CommunicationSpec, OuterSpec, QuorumSpec
from atoll_runtime.protocol.communication import BITS, GOAL, Communication, Rules, streams
from atoll_runtime.protocol.linkshare import USED
from atoll_runtime.protocol.rules import TRANSFER_SECONDS
from atoll_runtime.simulate.fleet.rounds import MOST_LOAD, SLOWNESS, World, cut_off
from atoll_runtime.simulate.fleet.scenario import Scenario, Unit, clock_step
from atoll_runtime.simulate.network import Wire
from atoll_runtime.simulate.shard import Costs
from atoll_runtime.simulate.wan.traffic import GIGA
from atoll_runtime.transport import codecs

WARM_UP = 2
"""Intervals at the beginning that are not counted, because the links are not measured yet."""
MERGE_STEPS = 0.02
"""Duration of a merge in steps, and of its write."""


@dataclass(frozen=True, kw_only=True)
class Links:
    """The input of the simulation."""

    gbps: Sequence[float]
    """Gbit/s of each unit's link, in each direction."""
    params: float
    step_seconds: Sequence[float]
    """Seconds of a step of each unit."""
    outer: OuterSpec
    communication: CommunicationSpec
    """The fixed settings; each unit chooses the rest."""
    quorum: QuorumSpec
    audit: int | None = None
    """Global steps between two audits; None: no audits."""
    delay: float = 0.0
    """Seconds, one way."""
    outages: Mapping[int, Sequence[tuple[float, float]]] = field(default_factory=dict)
    """By unit: begin and end of each outage, in seconds since the run began."""
    steps: int = 600
    """Global steps."""

    @property
    def clock_seconds(self) -> float:
        """Seconds of a step of the syncer's clock."""
        return clock_step(self.step_seconds, self.outer)

    def body_seconds(self, gbps: float, codec: str) -> float:
        """Returns the seconds of a fragment in this codec on a link of this rate."""
        return self.params * BITS[codec] / self.outer.fragments / (gbps * GIGA)

    def version_seconds(self, gbps: float) -> float:
        """Returns the seconds of a whole version on a link of this rate. The first versions come whole, so no quorum is
        reached without links that carry them in `TRANSFER_SECONDS`."""
        return self.body_seconds(gbps, codecs.whole(self.outer.codec))

    def quorum_gbps(self, gbps: Sequence[float]) -> float:
        """Returns the Gbit/s of the slowest link that a quorum of these needs; 0 if they are too few."""
        return sorted(gbps)[-self.quorum.min] if len(gbps) >= self.quorum.min else 0.0

    def inner_steps(self) -> float:
        """Returns about how many inner steps all units make. They train while a round takes longer than a step, and
        while too few of them have a link."""
        whole = [gbps for unit, gbps in enumerate(self.gbps) if unit not in self.outages]
        waited = self._seconds(self.quorum_gbps(self.gbps)) + cut_off(self.outages.values())
        seconds = min(waited, self._seconds(self.quorum_gbps(whole)))
        return seconds * sum(1 / step for step in self.step_seconds)

    def _seconds(self, gbps: float) -> float:
        """Returns about how long a run takes whose quorum needs a link of this rate, at most until it has stalled;
        infinite if the link carries no version."""
        if not gbps or self.version_seconds(gbps) > TRANSFER_SECONDS:
            return math.inf
        rules = Rules(self.communication, self.outer.codec, self.audit is not None)
        interval = self.outer.fragments * self.body_seconds(gbps, rules.modes[-1].push)
        longest = SLOWNESS * MOST_LOAD * self.clock_seconds
        return self.steps * max(
            self.clock_seconds, min(interval / self.outer.interval, longest), 2 * self.delay
        )

    def need_gbps(self, bits: tuple[float, float]) -> float:
        """Returns the Gbit/s with which a contribution and a version of these bits of an element are transferred in
        every round: an interval has room for all transfers of a direction, and for two transfers of one fragment, see
        `_apart`. Changes in int4 need time to catch up too, because a missed one is replaced by a wider version.
        Infinite if no bandwidth suffices: an interval has no room for two round trips and a step."""
        interval = self.outer.interval * self.clock_seconds
        chain, left = self.params * sum(bits) / self.outer.fragments, interval - self._apart
        whole = self.params * max(bits) / interval / (USED if bits[1] == BITS["int4"] else 1.0)
        if left <= -self.clock_seconds:
            return math.inf
        return max(whole, chain / left if left > 0 else 0.0) / GIGA

    def fitting_interval(self, gbps: float, used: Communication) -> int:
        """Returns the least H with which a link of this rate carries every round in int4 or what `used` has."""
        whole = BITS["int4"] * self.params / (gbps * GIGA) / GOAL
        chain = 2 * min(used.bits) * self.params / self.outer.fragments / (gbps * GIGA)
        return math.ceil(max(whole, chain + self._apart) / self.clock_seconds)

    @property
    def _apart(self) -> float:
        """Seconds of an interval without the transfers of a fragment: two steps and two round trips, because a
        contribution needs the version that holds the last one (docs/protocol.md, Far units)."""
        return 2 * self.clock_seconds + 4 * self.delay


@dataclass(frozen=True, kw_only=True)
class UnitOnLink:
    """The result for one unit. Shares of rounds and tokens exclude the warm-up. Link figures are those at the end."""

    link_gbps: float
    need_gbps: float
    """Gbit/s with which it would be a member of every round, in its codec; infinite if there is none."""
    member_share: float
    """Share of the rounds of which it was a member."""
    merged_share: float
    """Share of its trained tokens that were merged. The rest was in flight at the end, or came too late."""
    hidden_share: float
    """Share of its time in inner steps. It never waits for its link."""
    codec: str
    streams: int
    """Number of streams that its link would be given."""
    period: float
    """It takes part in one of `period` rounds."""
    rounds: int
    """Number of rounds of which it was a member."""
    advice: str
    """Setting with which it would be a member of every round; empty if its link carries all rounds."""


def on_links(asked: Links) -> tuple[tuple[UnitOnLink, ...], float]:
    """Returns the result for each unit, by the syncer's and the learner's own rules, and the goodput: the share of all
    units' time in inner steps. Raises `Stalled`: the run does not reach its target.
    """
    world = World(_scenario(asked))
    first = WARM_UP * asked.outer.interval
    members: Counter[str] = Counter()
    rounds = 0
    before = dict.fromkeys(world.learners, (0, 0))
    for round_id, taken in world.merges():
        if round_id.step > first:
            rounds += 1
            members.update(member.unit for member in taken)
        else:
            before |= {name: (account.merged, account.trained) for name, account in world.accounts.items()}
    units = []
    for (name, learner), gbps in zip(world.learners.items(), asked.gbps, strict=True):
        account = world.accounts[name]
        merged, trained = account.merged - before[name][0], account.trained - before[name][1]
        used, time = learner.client.communication, learner.busy + learner.idle
        units.append(
            UnitOnLink(
                link_gbps=gbps,
                # Who takes every round fetches versions in the codec in which it contributes.
                need_gbps=asked.need_gbps((BITS[used.codec], BITS[used.codec])),
                member_share=members[name] / rounds,
                merged_share=min(1.0, merged / trained) if trained else 0.0,
                hidden_share=learner.busy / time if time else 0.0,
                codec=used.codec,
                # Simulated transfers carry almost no bytes, so the choice of `used` does not apply.
                streams=streams(1, gbps * GIGA, 2 * asked.delay),
                period=used.period,
                rounds=members[name],
                advice=_advice(asked, gbps, used),
            )
        )
    return tuple(units), world.goodput


def _scenario(asked: Links) -> Scenario:
    units = []
    for i, (step, gbps) in enumerate(zip(asked.step_seconds, asked.gbps, strict=True)):
        codec, outages = asked.outer.codec, tuple(asked.outages.get(i, ()))
        wire = Wire(asked.body_seconds(gbps, codec), asked.delay, outages, codec)
        units.append(Unit(step, wire))
    work = MERGE_STEPS * asked.clock_seconds
    return Scenario(
        asked.outer,
        asked.quorum,
        asked.steps,
        tuple(units),
        costs=Costs(merge=work, write=work),
        communication=asked.communication,
        audit=asked.audit,
    )


def _advice(asked: Links, gbps: float, used: Communication) -> str:
    """Returns a setting with which this link carries every round; empty if it does already."""
    need = asked.need_gbps(used.bits)
    if need <= gbps or (used.advice and need < math.inf):
        return used.advice
    return f"outer.interval: {asked.fitting_interval(gbps, used)}"

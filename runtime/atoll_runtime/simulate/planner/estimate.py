"""Estimates what to expect of a run: steps, goodput, losses, traffic, checkpoints, heals, time to the target."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll_runtime.protocol.communication import BITS
from atoll_runtime.simulate.fleet.goodput import Case, Estimate, estimate
from atoll_runtime.simulate.fleet.setting import DAY, Fleet, Heal, Recovery
from atoll_runtime.simulate.planner.merging import merged_share
from atoll_runtime.simulate.planner.needs import (
    checkpoint_traffic,
    global_step,
    heal_of,
    stages,
    step_of,
)
from atoll_runtime.simulate.planner.run import Assumptions, Pool, Run
from atoll_runtime.simulate.wan.bandwidth import streaming_need
from atoll_runtime.simulate.wan.traffic import Need, Traffic, shares

INTERRUPTIONS = 200
"""The least number of interruptions of a pool in one simulated stretch, to know lost goodput to a few per cent."""
MOST_INTERRUPTIONS = 20_000
"""The largest number of interruptions in one stretch. They take a tenth of a second to simulate."""
STEPPING = ("useful", "lost_work", "below_quorum")
"""The causes of time in which a unit trains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEstimate:
    """One pool. Figures are of all its units together unless stated otherwise."""

    name: str
    generation: str
    units: int
    chips_per_unit: int
    chips: int
    step_seconds: float
    """One unit's."""
    step_source: str
    tokens_per_step: int
    """One unit's."""
    interruptions_per_day: float
    live: float
    """Share of time in which a unit trains."""
    goodput: float
    interval: tuple[float, float]
    """95 % interval of the goodput."""
    lost_chip_hours_per_day: Mapping[str, float]
    """By cause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A whole run."""

    goodput: float
    interval: tuple[float, float]
    uptime: float
    """Share of time in which at least one unit trains."""
    below_quorum: float
    """Share of time in which fewer than K units live: nothing is merged."""
    interruptions_per_day: float
    lost_chip_hours_per_day: Mapping[str, float]
    """By cause."""
    step_seconds: float
    """Seconds of a step of the syncer's clock."""
    link: Need
    """One unit's link."""
    checkpoint: Mapping[str, float]
    heal_seconds: Mapping[str, float]
    """By stage."""
    merged_share: float
    """Share of the trained tokens that is merged."""
    tokens_per_second: float
    """Merged tokens."""
    seconds_to_target: float
    """Until the first of the run's targets is reached; infinite if none can be reached."""
    pools: tuple[PoolEstimate, ...]


def expect(run: Run, assumed: Assumptions) -> Expectation:
    """Simulates every pool under failures, and computes the rest.

    Units fail independently, so each pool is simulated alone. The quorum counts units of all pools, so it is computed
    from the pools' shares of living units.
    """
    step_seconds = global_step(run, assumed)
    heal = heal_of(run, step_seconds, assumed)
    recovery = Recovery(notice=0.0, repair=assumed.repair_seconds)  # a unit that loses a host stops at once
    fleets = [_simulated(pool, recovery, heal, assumed.mtbi_of(pool), assumed.seed) for pool in run.pools]
    live = [
        (pool.units, sum(fleet.share[cause] for cause in STEPPING))
        for pool, fleet in zip(run.pools, fleets, strict=True)
    ]
    pools = tuple(
        _pool(run, assumed, fleet, index, live, below_while_living(live, run.quorum.min, index))
        for index, fleet in enumerate(fleets)
    )
    goodput = sum(pool.chips / run.chips * pool.goodput for pool in pools)
    margin = math.hypot(
        *(pool.chips / run.chips * (pool.interval[1] - pool.interval[0]) / 2 for pool in pools)
    )
    stalled = below(live, run.quorum.min)
    merged = merged_share(run, assumed)
    trained = sum(pool.units * pool.tokens_per_step / pool.step_seconds * pool.goodput for pool in pools)
    lost: Counter[str] = Counter()
    for pool in pools:
        lost.update(pool.lost_chip_hours_per_day)
    return Expectation(
        goodput=goodput,
        interval=(max(0.0, goodput - margin), min(1.0, goodput + margin)),
        uptime=1.0 - below(live, 1),
        below_quorum=stalled,
        interruptions_per_day=sum(pool.interruptions_per_day for pool in pools),
        lost_chip_hours_per_day=dict(sorted(lost.items())),
        step_seconds=step_seconds,
        link=link_need(run, step_seconds),
        checkpoint=checkpoint_traffic(run, step_seconds),
        heal_seconds=stages(heal, assumed.repair_seconds),
        merged_share=merged,
        tokens_per_second=merged * trained,
        seconds_to_target=_seconds_to_target(run, (1.0 - stalled) / step_seconds, merged * trained),
        pools=pools,
    )


def link_need(run: Run, step_seconds: float) -> Need:
    """Returns the need of one unit's link, with the real sizes of the model's fragments."""
    return streaming_need(
        Traffic(
            params=run.parameters,
            step_seconds=step_seconds,
            bits=BITS[run.codec],
            interval=run.outer.interval,
            fragments=run.outer.fragments,
            overlap=run.outer.overlap,
            sizes=shares(run.layout),
        )
    )


@lru_cache(maxsize=64)
def _simulated(pool: Pool, recovery: Recovery, heal: Heal, mtbi: float, seed: int) -> Estimate:
    fleet = Fleet(chips=pool.all_chips, learners=pool.units, mtbi_seconds=mtbi, slice_chips=pool.chips)
    between = mtbi / pool.all_chips
    seconds = min(max(DAY, INTERRUPTIONS * between), MOST_INTERRUPTIONS * between)
    case = Case(fleet=fleet, method="unit", recovery=recovery, heal=heal, seconds=seconds, seed=seed)
    return estimate(case)


def _pool(
    run: Run, assumed: Assumptions, fleet: Estimate, index: int, live: list[tuple[int, float]], stalled: float
) -> PoolEstimate:
    """`stalled`: the share of a unit's live time in which too few other units live."""
    pool = run.pools[index]
    hours = pool.all_chips * DAY / 3600
    lost = {cause: share * hours for cause, share in fleet.share.items() if cause != "useful" and share > 0}
    if stalled > 0:
        lost["below_quorum"] = fleet.goodput * stalled * hours
    low, high = fleet.interval
    step = step_of(pool, run, assumed)
    return PoolEstimate(
        name=pool.name,
        generation=pool.generation,
        units=pool.units,
        chips_per_unit=pool.chips,
        chips=pool.all_chips,
        step_seconds=step.seconds,
        step_source=step.source,
        tokens_per_step=step.tokens,
        interruptions_per_day=pool.all_chips * DAY / assumed.mtbi_of(pool),
        live=live[index][1],
        goodput=fleet.goodput * (1.0 - stalled),
        interval=(low * (1.0 - stalled), high * (1.0 - stalled)),
        lost_chip_hours_per_day=lost,
    )


def _seconds_to_target(run: Run, steps_per_second: float, tokens_per_second: float) -> float:
    goals = ((run.target.global_steps, steps_per_second), (run.target.tokens, tokens_per_second))
    return min(amount / rate if rate > 0 else math.inf for amount, rate in goals if amount is not None)


def living(shares: Sequence[tuple[int, float]]) -> NDArray[np.float64]:
    """Returns the probabilities of 0, 1, … living units, which fail and heal independently.

    `shares`: by pool, its number of units and the share of time that each lives.
    """
    result = np.ones(1)
    for units, share in shares:
        for _ in range(units):
            result = np.convolve(result, (1.0 - share, share))
    return result


def below(shares: Sequence[tuple[int, float]], quorum: int) -> float:
    """Returns the share of time in which fewer than `quorum` units live."""
    return float(living(shares)[:quorum].sum())


def below_while_living(shares: Sequence[tuple[int, float]], quorum: int, pool: int) -> float:
    """Returns the share of the live time of a unit of pool number `pool` in which too few other units live."""
    others = [
        (units - (index == pool), share)
        for index, (units, share) in enumerate(shares)
        if units > (index == pool)
    ]
    return below(others, quorum - 1)

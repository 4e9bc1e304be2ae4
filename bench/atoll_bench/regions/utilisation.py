"""Trains one unit behind a narrow link and one behind a wide link. Measures how much of the first one's time and tokens
counts.

The published study at these bandwidths blocks while it sends. It reached 11.6, 36, 72 and 87 % of the compute
utilisation with H = 128. Steps over links without limits are measured before and after the runs of each interval, so
that changes in the speed of the machine are corrected.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atoll_bench.figures import say
from atoll_bench.regions import simulated
from atoll_bench.regions.decoupled import SEED, Setting, begun, decoupled, environment, train
from atoll_bench.regions.wan import PARAMETERS, STEP_SECONDS, Region, Wan, scale_of
from atoll_cli.errors import CommandError
from atoll_runtime.contract import Dimensions, LedgerReport, LinkReport, ModelSpec, SyncerStatus
from atoll_runtime.data import write_stdlib
from atoll_runtime.protocol.communication import BITS
from atoll_runtime.simulate.fleet.links import WARM_UP

PUBLISHED_INTERVAL, PUBLISHED = 128, {0.05: 0.116, 0.2: 0.36, 1.0: 0.72, 5.0: 0.87}
"""H, and the utilisation by Gbit/s."""
NARROW, WIDE = "narrow", "wide"
MODEL = ModelSpec(dimensions=Dimensions(layers=6, width=256, heads=4, kv_heads=2, hidden=640))
"""4 M parameters. At 0.05 Gbit/s the scaled link carries 83 kbit in a step, of which the step's report takes 4 kbit."""
BATCH = 2
"""Sequences of a step. With these a step takes 0.1 to 0.2 s, and the grid about half an hour."""
DELAY = 0.01
"""Seconds, one way."""
MTU = 9000
"""Bytes of a frame. With short frames the relays would take a fifth of the cores on which the learners compute."""
WARM_STEPS, COUNTED_STEPS = 64, 128
"""The least number of steps that are not counted, so that a first fragment has come through a link of 0.05 Gbit/s, and
of counted steps, which are enough for a rate."""
INTERVALS = 4
"""The least number of intervals of a run over a limited link."""
EXCHANGES = 12
"""The link of such a run could carry the whole model in int4 at least this many times, so that shares of tokens are
meaningful."""


@dataclass(frozen=True)
class Utilisation:
    """One line of output: the unit behind the narrow link, measured and simulated."""

    gbps: float
    interval: int
    utilisation: float
    """Seconds of a step over links without limits / seconds of a step over this link."""
    merged_share: float
    """Share of its tokens that was merged."""
    codec: str
    streams: int
    period: float
    published: float | None
    simulated_utilisation: float
    simulated_merged_share: float
    policy_share: float
    """Share of the unit's time whose tokens are merged in a long simulation of the policy with this interval."""
    best_share: float
    """The same for the best of all fixed codecs and measured intervals at this rate."""
    best_codec: str
    best_interval: int
    steps: int
    step_seconds: float
    free_step_seconds: tuple[float, float]
    """Over links without limits, before and after the runs with this interval."""


@dataclass(frozen=True)
class Ran:
    """The narrow unit of one run."""

    step_seconds: float
    """After the warm-up."""
    merged_share: float
    """Share of its tokens after the intervals that the simulator leaves out too."""
    link: LinkReport


class Cells:
    """Makes runs over the same links and data, with different intervals and rates."""

    def __init__(self, wan: Wan, folder: Path, setting: Setting) -> None:
        self._wan, self._folder, self._setting = wan, folder, setting
        self._environment, self._runs = environment(folder), 0

    def free(self, interval: int) -> Ran:
        """Runs over links without limits. Raises `CommandError`."""
        self._wan.free()
        return self._run("no limit", interval, warm_up(interval) + COUNTED_STEPS)

    def narrow(self, gbps: float, interval: int, free_step_seconds: float) -> Ran:
        """Runs over the narrow link. Raises `CommandError`."""
        self._wan.regions = _regions(gbps)
        self._wan.link(scale_of(self._setting.parameters, free_step_seconds))
        return self._run(f"{gbps:g} Gbit/s", interval, steps_of(gbps, interval))

    def _run(self, links: str, interval: int, steps: int) -> Ran:
        self._runs += 1
        say(f"H = {interval}, {links}: {steps} steps")
        setting = replace(self._setting, steps=steps, interval=interval)
        folder = self._folder / str(self._runs)
        with decoupled(self._wan, folder, setting, SEED, self._environment) as run:
            seen = list(train(run))
        before, end = first_after(warm_up(interval), seen), seen[-1]
        after = end.units[NARROW]
        return Ran(
            (end.time - before.time) / (after.step - before.units[NARROW].step),
            merged_share(first_after(WARM_UP * interval, seen).ledger[NARROW], end.ledger[NARROW]),
            after.link,
        )


def first_after(steps: int, seen: Sequence[SyncerStatus]) -> SyncerStatus:
    """Returns the first status after `steps` steps. Raises `CommandError` if the narrow unit made no later step."""
    end = seen[-1]
    found = next((status for status in seen if status.global_step >= steps), end)
    if found.units[NARROW].step == end.units[NARROW].step:
        raise CommandError(f"the run of {end.time - begun(end):.0f} s ended within {steps} steps")
    return found


def warm_up(interval: int) -> int:
    """The number of steps that are not counted."""
    return max(WARM_STEPS, WARM_UP * interval)


def steps_of(gbps: float, interval: int) -> int:
    """The number of steps of a run over a link of this rate."""
    exchange = PARAMETERS * BITS["int4"] / (1e9 * gbps * STEP_SECONDS)
    least = math.ceil(EXCHANGES * exchange)
    return max(warm_up(interval) + COUNTED_STEPS, INTERVALS * interval, least)


def merged_share(old: LedgerReport, new: LedgerReport) -> float:
    """Share of the tokens trained between two ledgers. Merges of earlier work count, as in the simulator."""
    return min(1.0, (new.merged - old.merged) / max(1, new.trained - old.trained))


def between(before: float, after: float, position: int, runs: int) -> float:
    """Interpolates the seconds of a step over free links at the time of the run at this position."""
    return before + (after - before) * (position + 1) / (runs + 1)


def measure(
    gbps: Sequence[float], intervals: Sequence[int], model: ModelSpec = MODEL
) -> Iterator[Utilisation]:
    """Measures each bandwidth with each interval. Raises `CommandError` if a process ended, and `ClusterError` or
    `HostError` if this machine cannot run the measurement."""
    wide = max(PUBLISHED)
    with tempfile.TemporaryDirectory(prefix="atoll-regions-") as name:
        folder = Path(name)
        say("simulations of the whole grid")
        compared = {rate: simulated.compared(rate, wide, intervals) for rate in gbps}
        with Wan(folder / "wan", _regions(gbps[0]), MTU) as wan:
            setting = Setting(f"file://{folder}/data", COUNTED_STEPS, model=model, batch=BATCH)
            write_stdlib(setting.data)
            cells = Cells(wan, folder, setting)
            for interval in intervals:
                before = cells.free(interval).step_seconds
                ran = [cells.narrow(rate, interval, before) for rate in gbps]
                free = before, cells.free(interval).step_seconds
                for position, (rate, each) in enumerate(zip(gbps, ran, strict=True)):
                    steps = steps_of(rate, interval)
                    told, (policy, best) = simulated.links(rate, wide, interval, steps), compared[rate]
                    yield Utilisation(
                        gbps=rate,
                        interval=interval,
                        utilisation=between(*free, position, len(ran)) / each.step_seconds,
                        merged_share=each.merged_share,
                        codec=each.link.codec,
                        streams=each.link.streams,
                        period=each.link.period,
                        published=PUBLISHED.get(rate) if interval == PUBLISHED_INTERVAL else None,
                        simulated_utilisation=told.hidden_share,
                        simulated_merged_share=told.merged_share,
                        policy_share=policy[interval].share,
                        best_share=best.share,
                        best_codec=best.codec,
                        best_interval=best.interval,
                        steps=steps,
                        step_seconds=each.step_seconds,
                        free_step_seconds=free,
                    )


def _regions(gbps: float) -> tuple[Region, ...]:
    return Region(NARROW, gbps, DELAY), Region(WIDE, max(PUBLISHED), DELAY)

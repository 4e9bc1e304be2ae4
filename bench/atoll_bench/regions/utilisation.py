"""One unit behind a narrow link, beside one whose link is wide: what of its time and of its tokens counts.

The published study at these bandwidths blocks while it sends. It reached 11.6, 36, 72 and 87 % of the compute
utilisation with H = 128.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll_bench.regions.decoupled import begun
from atoll_bench.regions.setting import parameters_of
from atoll_bench.regions.trainings import Progress, Trainings
from atoll_bench.regions.wan import PARAMETERS, STEP_SECONDS, Region, Wan, scale_of
from atoll_cli.errors import CommandError
from atoll_local.namespaces import check_namespaces
from atoll_local.process import run
from atoll_runtime.contract import Dimensions, LinkReport, ModelSpec, OuterSpec, SyncerStatus

PUBLISHED_INTERVAL, PUBLISHED = 128, {0.05: 0.116, 0.2: 0.36, 1.0: 0.72, 5.0: 0.87}
"""H, and utilisation by Gbit/s."""
NARROW, WIDE = "narrow", "wide"
MODEL = ModelSpec(dimensions=Dimensions(layers=6, width=256, heads=4, kv_heads=2, hidden=640))
"""4 M parameters. The scaled link carries 83 kbit in a step at 0.05 Gbit/s, and a report of the step has 4."""
BATCH = 4
"""Sequences, so that steps take some tenths of a second."""
DELAY = 0.01
"""Seconds, one way."""
INTERVALS, WARM_UP = 6, 2
"""Of a run, and those of them that are not counted: links are not measured yet."""
LEAST_STEPS = 200
SIMULATION_SECONDS = 120.0


@dataclass(frozen=True)
class Utilisation:
    """One line: the unit behind the narrow link, and what the simulator says of it."""

    gbps: float
    interval: int
    utilisation: float
    """Seconds of its steps over links that nothing limits, of those over this link."""
    merged_share: float
    """Of its tokens."""
    codec: str
    period: float
    published: float | None
    simulated_utilisation: float
    simulated_merged_share: float
    steps: int
    step_seconds: float


class Window:
    """Called with each status: keeps the one after the warm-up."""

    def __init__(self, interval: int) -> None:
        self._from = WARM_UP * interval
        self.first: SyncerStatus | None = None

    def __call__(self, status: SyncerStatus) -> None:
        if self.first is None and status.global_step >= self._from:
            self.first = status

    def rates(self, end: SyncerStatus) -> tuple[float, float]:
        """Of the narrow unit since then: seconds of a step, and the share of its tokens that was merged."""
        first = self.first
        if first is None or first.units[NARROW].step == end.units[NARROW].step:
            raise CommandError(f"the run of {end.time - begun(end):.0f} s ended within its first intervals")
        steps = end.units[NARROW].step - first.units[NARROW].step
        old, new = first.ledger[NARROW], end.ledger[NARROW]
        return (end.time - first.time) / steps, (new.merged - old.merged) / max(1, new.trained - old.trained)


def measure(gbps: Sequence[float], intervals: Sequence[int], progress: Progress) -> Iterator[Utilisation]:
    """Each bandwidth with each interval.

    Raises:
        CommandError: a process ended.
        ClusterError, HostError: this machine cannot do it.
    """
    check_namespaces()
    with (
        tempfile.TemporaryDirectory(prefix="atoll-regions-") as name,
        Wan(Path(name) / "wan", _regions(gbps[0])) as wan,
    ):
        trainings = Trainings(wan, Path(name), LEAST_STEPS, progress)
        trainings.setting = replace(trainings.setting, model=MODEL, batch=BATCH)
        for interval in intervals:
            steps = max(LEAST_STEPS, INTERVALS * interval)
            plain, *_ = _watched(trainings, f"{interval}-free", steps, interval, shaped=False)
            trainings.scale = scale_of(parameters_of(trainings.setting), plain)
            for rate in gbps:
                wan.regions = _regions(rate)
                seconds, merged, link = _watched(
                    trainings, f"{interval}-{rate}", steps, interval, shaped=True
                )
                simulated = _simulated(rate, interval, steps)
                yield Utilisation(
                    gbps=rate,
                    interval=interval,
                    utilisation=plain / seconds,
                    merged_share=merged,
                    codec=link.codec,
                    period=link.period,
                    published=PUBLISHED.get(rate) if interval == PUBLISHED_INTERVAL else None,
                    simulated_utilisation=simulated["hidden_share"],
                    simulated_merged_share=simulated["merged_share"],
                    steps=steps,
                    step_seconds=plain,
                )


def _regions(gbps: float) -> tuple[Region, ...]:
    return Region(NARROW, gbps, DELAY), Region(WIDE, max(PUBLISHED), DELAY)


def _watched(
    trainings: Trainings, name: str, steps: int, interval: int, *, shaped: bool
) -> tuple[float, float, LinkReport]:
    """Of the narrow unit after the warm-up: seconds of a step, the merged share of its tokens, its use of its link."""
    window = Window(interval)
    end = trainings.decoupled(name, steps, shaped=shaped, interval=interval, watch=window).status
    assert end is not None, "of Atoll"
    return (*window.rates(end), end.units[NARROW].link)


def _simulated(gbps: float, interval: int, steps: int) -> dict[str, Any]:
    """What `atoll simulate links` says of the large model over these links."""
    options = {
        "links": f"{gbps},{max(PUBLISHED)}",
        "params": str(PARAMETERS),
        "step-time": str(STEP_SECONDS),
        "fragments": str(min(interval, OuterSpec().fragments)),
        "interval": str(interval),
        "steps": str(steps),
        "codec": "auto",
    }
    command = [sys.executable, "-m", "atoll_cli", "simulate", "links", "--json"]
    command += [f"--{name}={value}" for name, value in options.items()]
    told = run(command, SIMULATION_SECONDS, raises=CommandError, name="simulate links")
    found: dict[str, Any] = json.loads(told)["units"][0]
    return found

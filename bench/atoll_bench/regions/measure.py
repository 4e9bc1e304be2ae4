"""The published experiment at small scale: synchronous training and Atoll over the same links with equal tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from atoll_bench.regions.setting import SIZE
from atoll_bench.regions.trainings import Spent, Trainings
from atoll_bench.regions.wan import REGIONS, Wan, round_trips

CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")


def measure(steps: int, seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Runs the whole experiment and yields what `atoll bench regions --json` prints.

    Args:
        steps: steps of Atoll. Its regions go on until they hear of its end. For equal tokens the synchronous training
            gets as many steps as they make over equal links.
        seeds: seeds of Atoll's runs, over equal links without limits and over the links of the regions.

    Raises:
        CommandError: a process ended, or there is a bridge of another bench.
        ClusterError, HostError: this machine cannot run the experiment.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-regions-") as name, Wan(Path(name) / "wan") as wan:
        trainings = Trainings(wan, Path(name), steps)
        equal = [trainings.decoupled(f"equal-{seed}", seed, shaped=False) for seed in seeds]
        each_step = len(wan.regions) * trainings.setting.step_tokens
        synchronous = trainings.synchronous(round(fmean(each.tokens for each in equal) / each_step))
        runs = [trainings.decoupled(f"atoll-{seed}", seed) for seed in seeds]
        yield _document(trainings, synchronous, runs, equal)


def _document(
    trainings: Trainings, synchronous: Spent, runs: Sequence[Spent], equal: Sequence[Spent]
) -> dict[str, Any]:
    """The measurements, with rates scaled to the large model. Atoll's figures are those of its first run, except for
    the losses."""
    atoll = runs[0]
    status = atoll.status
    assert status is not None
    near, far = round_trips()
    regions = []
    for region in REGIONS:
        unit, ledger = status.units[region.name], status.ledger[region.name]
        regions.append(
            {
                "name": region.name,
                "gbps": region.gbps,
                "scaled_gbps": region.gbps * trainings.scale,
                "rtt_ms": 2e3 * region.delay,
                "used_gbps": atoll.used[region.name] / 1e9 / trainings.scale,
                "used_gbps_synchronous": synchronous.used[region.name] / 1e9 / trainings.scale,
                "member_share": unit.contributions / max(1, status.rounds),
                "merged_share": ledger.merged / max(1, ledger.trained),
                "step_seconds": unit.step_seconds,
                "link": unit.link.model_dump(),
            }
        )
    return {
        "synchronous_s": synchronous.seconds,
        "atoll_s": atoll.seconds,
        "ratio": synchronous.seconds / atoll.seconds,
        "loss_synchronous": synchronous.loss,
        "loss_atoll": fmean(each.loss for each in runs),
        "losses_atoll": [each.loss for each in runs],
        "loss_equal_links": [each.loss for each in equal],
        "steps": trainings.setting.steps,
        "steps_synchronous": synchronous.tokens // (len(REGIONS) * trainings.setting.step_tokens),
        "tokens_synchronous": synchronous.tokens,
        "tokens_atoll": atoll.tokens,
        "tokens_merged_atoll": sum(ledger.merged for ledger in status.ledger.values()) // status.fragments,
        "model": SIZE,
        "parameters": trainings.setting.parameters,
        "step_seconds": trainings.step_seconds,
        "scale": trainings.scale,
        "congestion_control": CONGESTION_CONTROL.read_text().strip(),
        "rtt_between_regions_ms": [1e3 * near, 1e3 * far],
        "regions": regions,
    }

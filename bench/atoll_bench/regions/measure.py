"""The published experiment at small scale: synchronous training and Atoll over the same links, for equal tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll_bench.regions.outage import Outage, merged_share
from atoll_bench.regions.setting import SIZE, parameters_of
from atoll_bench.regions.trainings import Progress, Spent, Trainings
from atoll_bench.regions.wan import REGIONS, Wan, round_trips
from atoll_local.namespaces import check_namespaces

CUT_SHARE = 0.6
"""Of the run with a cut, the part in which the region is away."""
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
CUT = "east"
"""The region that is cut off."""


def measure(steps: int, seeds: Sequence[int], cut_seconds: int, progress: Progress) -> dict[str, Any]:
    """Runs all of it; returns the document of `atoll bench regions --json`.

    Args:
        steps: of both systems, for equal tokens.
        seeds: of runs over equal links that nothing limits.
        cut_seconds: for which a region is away; 0: no run with a cut.

    Raises:
        CommandError: a process ended, or a bridge of another bench is there.
        ClusterError, HostError: this machine cannot do it.
    """
    check_namespaces()
    with tempfile.TemporaryDirectory(prefix="atoll-regions-") as name, Wan(Path(name) / "wan") as wan:
        trainings = Trainings(wan, Path(name), steps, progress)
        synchronous = trainings.synchronous()
        equal = [trainings.decoupled(f"equal-{seed}", steps, seed, shaped=False) for seed in seeds]
        atoll = trainings.decoupled("atoll", steps)
        told = _document(trainings, synchronous, atoll, equal)
        if not cut_seconds:
            return told
        longer = round(cut_seconds / CUT_SHARE / atoll.seconds * steps)
        whole = trainings.decoupled("whole", longer)
        outage = Outage(wan, trainings.scale, CUT, longer, cut_seconds)
        broken = trainings.decoupled("broken", longer, watch=outage)
        assert broken.status is not None
        told["cut"] = {
            **outage.document(broken.status),
            "steps": longer,
            "run_s": broken.seconds,
            "run_without_cut_s": whole.seconds,
            "loss": broken.loss,
            "loss_without_cut": whole.loss,
        }
        return told


def _document(
    trainings: Trainings, synchronous: Spent, atoll: Spent, equal: Sequence[Spent]
) -> dict[str, Any]:
    """What was measured, with rates as they would be for the large model."""
    status = atoll.status
    assert status is not None
    near, far = round_trips()
    regions = []
    for region in REGIONS:
        unit = status.units[region.name]
        regions.append(
            {
                "name": region.name,
                "gbps": region.gbps,
                "scaled_gbps": region.gbps * trainings.scale,
                "rtt_ms": 2e3 * region.delay,
                "used_gbps": atoll.used[region.name] / 1e9 / trainings.scale,
                "used_gbps_synchronous": synchronous.used[region.name] / 1e9 / trainings.scale,
                "member_share": unit.contributions / max(1, status.rounds),
                "merged_share": merged_share(status.ledger[region.name]),
                "step_seconds": unit.step_seconds,
                "link": unit.link.model_dump(),
            }
        )
    return {
        "synchronous_s": synchronous.seconds,
        "atoll_s": atoll.seconds,
        "ratio": synchronous.seconds / atoll.seconds,
        "loss_synchronous": synchronous.loss,
        "loss_atoll": atoll.loss,
        "loss_equal_links": [each.loss for each in equal],
        "steps": trainings.setting.steps,
        "tokens_synchronous": synchronous.tokens,
        "tokens_atoll": atoll.tokens,
        "model": SIZE,
        "parameters": parameters_of(trainings.setting),
        "step_seconds": trainings.step_seconds,
        "scale": trainings.scale,
        "congestion_control": CONGESTION_CONTROL.read_text().strip(),
        "rtt_between_regions_ms": [1e3 * near, 1e3 * far],
        "regions": regions,
    }

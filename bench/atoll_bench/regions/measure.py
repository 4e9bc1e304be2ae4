"""The published experiment at small scale: synchronous training and Atoll over the same links with equal tokens."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from atoll_bench.regions.decoupled import begun
from atoll_bench.regions.setting import SIZE
from atoll_bench.regions.trainings import Spent, Trainings
from atoll_bench.regions.wan import REGIONS, Region, Wan, round_trips
from atoll_cli.errors import CommandError
from atoll_runtime.contract import LedgerReport, SyncerStatus

CUT_SHARE = 0.6
"""Share of the run with a cut during which the region is away."""
CONGESTION_CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
CUT_FROM, CUT_UNTIL = 0.2, 0.85
CUT = "east"
"""The region that is cut off."""


@dataclass
class Outage:
    """Called with each status of the run. Cuts the region off, gives its link back, and notes what the units do."""

    wan: Wan
    region: str
    steps: int
    """Steps of the run. The cut begins after `CUT_FROM` of them and ends after `CUT_UNTIL` of them at the latest."""
    seconds: float
    """The cut lasts at most this long."""
    cut: SyncerStatus | None = None
    """The status at the cut."""
    back: SyncerStatus | None = None
    """The status when the link was given back."""
    again: SyncerStatus | None = None
    """The first status with a new merged contribution of the region."""

    def __call__(self, status: SyncerStatus) -> None:
        if self.cut is None:
            if status.global_step >= CUT_FROM * self.steps:
                self.wan.cut(self.region, True)
                self.cut = status
        elif self.back is None:
            if status.time - self.cut.time >= self.seconds or status.global_step >= CUT_UNTIL * self.steps:
                self.wan.cut(self.region, False)
                self.back = status
        elif self.again is None and self._merged(status) > self._merged(self.back):
            self.again = status

    def _merged(self, status: SyncerStatus) -> int:
        return status.units[self.region].contributions

    def document(self, end: SyncerStatus) -> dict[str, Any]:
        """Describes the outage. Raises `CommandError` if the run ended during the cut."""
        if self.cut is None or self.back is None:
            raise CommandError(
                f"the run of {end.time - begun(end):.0f} s ended before the cut of {self.region} did"
            )
        heard = self.again or end  # before that the syncer knows no newer step of the region
        steps = {name: unit.step - self.cut.units[name].step for name, unit in heard.units.items()}
        return {
            "region": self.region,
            "from_s": self.cut.time - begun(end),
            "seconds": self.back.time - self.cut.time,
            "steps_until_merged_again": steps,
            "merged_again_s": None if self.again is None else self.again.time - self.back.time,
            "incarnation": end.units[self.region].incarnation,
            "merged_share": {name: merged_share(ledger) for name, ledger in end.ledger.items()},
            "ledger_balances": all(balances(ledger) for ledger in end.ledger.values()),
        }


def merged_share(ledger: LedgerReport) -> float:
    return ledger.merged / max(1, ledger.trained)


def balances(ledger: LedgerReport) -> bool:
    return ledger.trained == ledger.merged + sum(ledger.discarded.values()) + ledger.in_flight


def measure(
    steps: int, seeds: Sequence[int], cut_seconds: int, plot: Path | None
) -> Iterator[dict[str, Any]]:
    """Runs the whole experiment and yields what `atoll bench regions --json` prints.

    Args:
        steps: steps of Atoll. Its regions go on until they hear of its end. For equal tokens the synchronous training
            gets as many steps as they make over equal links.
        seeds: seeds of Atoll's runs, over equal links without limits and over the links of the regions.
        cut_seconds: seconds for which a region is away; 0: no run with a cut.
        plot: path of a PNG of the links' use; None: no plot.

    Raises:
        CommandError: a process ended, or there is a bridge of another bench.
        ClusterError, HostError: this machine cannot run the experiment.
    """
    with tempfile.TemporaryDirectory(prefix="atoll-regions-") as name, Wan(Path(name) / "wan") as wan:
        trainings = Trainings(wan, Path(name), steps)
        equal = [trainings.decoupled(f"equal-{seed}", steps, seed, shaped=False) for seed in seeds]
        each_step = len(wan.regions) * trainings.setting.step_tokens
        synchronous = trainings.synchronous(round(fmean(each.tokens for each in equal) / each_step))
        runs = [trainings.decoupled(f"atoll-{seed}", steps, seed) for seed in seeds]
        atoll = runs[0]
        told = _document(trainings, synchronous, runs, equal)
        if cut_seconds:
            longer = round(cut_seconds / CUT_SHARE / atoll.seconds * steps)
            whole = trainings.decoupled("whole", longer)
            outage = Outage(wan, CUT, longer, cut_seconds)
            atoll = trainings.decoupled("broken", longer, watch=outage)
            assert atoll.status is not None
            told["cut"] = {
                **outage.document(atoll.status),
                "steps": longer,
                "run_s": atoll.seconds,
                "run_without_cut_s": whole.seconds,
                "loss": atoll.loss,
                "loss_without_cut": whole.loss,
            }
        yield told
        if plot is not None:
            draw(told, synchronous, atoll, plot)


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
        unit = status.units[region.name]
        regions.append(
            {
                "name": region.name,
                "gbps": region.gbps,
                "scaled_gbps": region.gbps * trainings.scale,
                "rtt_ms": 2e3 * region.delay,
                "used_gbps": atoll.used(region.name) / 1e9 / trainings.scale,
                "used_gbps_synchronous": synchronous.used(region.name) / 1e9 / trainings.scale,
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


def draw(document: dict[str, Any], synchronous: Spent, atoll: Spent, path: Path) -> None:
    """Writes a PNG of each region's link during the synchronous training and during Atoll's, with its cut."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 10), layout="tight")
    rows = figure.subplots(len(REGIONS), 2, sharex="col", squeeze=False)
    cut = document.get("cut")
    steps = document["steps_synchronous"], (cut or document)["steps"]
    for region, row in zip(REGIONS, rows, strict=True):
        for axes, spent in zip(row, (synchronous, atoll), strict=True):
            _link(axes, region, spent, document["scale"])
        if cut and cut["region"] == region.name:
            row[1].axvspan(
                cut["from_s"], cut["from_s"] + cut["seconds"], alpha=0.15, color="C3", label="cut off"
            )
            row[1].legend(fontsize=8, loc="upper right")
    for axes, name, count in zip(rows[0], ("synchronous", "Atoll"), steps, strict=True):
        axes.set_title(f"{name}, {count} steps\n{axes.get_title()}")
    for axes in rows[-1]:
        axes.set_xlabel("seconds")
    figure.savefig(path, format="png", dpi=100, metadata={"Software": None})


def _link(axes: Any, region: Region, spent: Spent, scale: float) -> None:
    seconds, *directions = spent.rates(region.name).T
    for values, label in zip(directions, ("sent", "received"), strict=True):
        axes.plot(seconds, values / 1e9 / scale, linewidth=0.8, label=label)
    axes.axhline(region.gbps, color="black", linestyle=":", linewidth=0.8)
    axes.set(ylim=(0, 1.15 * region.gbps), ylabel="Gbit/s", title=f"{region.name}, {region.gbps:g} Gbit/s")
    axes.legend(fontsize=8, loc="upper right")

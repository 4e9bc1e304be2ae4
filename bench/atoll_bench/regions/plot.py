"""Each region's link over time, in Gbit/s of the large model: synchronous training beside Atoll."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll_bench.regions.measure import Found
from atoll_bench.regions.trainings import Spent
from atoll_bench.regions.wan import REGIONS, Region


def draw(found: Found, path: Path) -> None:
    """Writes a PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, rows = plt.subplots(len(REGIONS), 2, figsize=(13, 10), sharex="col", squeeze=False)
    cut = found.document.get("cut")
    steps = found.document["steps_synchronous"], (cut or found.document)["steps"]
    for region, row in zip(REGIONS, rows, strict=True):
        for axes, spent in zip(row, (found.synchronous, found.atoll), strict=True):
            _link(axes, region, spent, found.scale)
        if cut and cut["region"] == region.name:
            row[1].axvspan(
                cut["from_s"], cut["from_s"] + cut["seconds"], alpha=0.15, color="C3", label="cut off"
            )
            row[1].legend(fontsize=8, loc="upper right")
    for axes, name, count in zip(rows[0], ("synchronous", "Atoll"), steps, strict=True):
        axes.set_title(f"{name}, {count} steps\n{axes.get_title()}")
    for axes in rows[-1]:
        axes.set_xlabel("seconds")
    figure.tight_layout()
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)


def _link(axes: Any, region: Region, spent: Spent, scale: float) -> None:
    seconds, *directions = zip(*spent.rates[region.name], strict=True)
    for values, label in zip(directions, ("sent", "received"), strict=True):
        axes.plot(seconds, [value / 1e9 / scale for value in values], linewidth=0.8, label=label)
    axes.axhline(region.gbps, color="black", linestyle=":", linewidth=0.8)
    axes.set(ylim=(0, 1.15 * region.gbps), ylabel="Gbit/s", title=f"{region.name}, {region.gbps:g} Gbit/s")
    axes.legend(fontsize=8, loc="upper right")

"""The published figures on bandwidth, each beside the figure that this simulation gives for the same setting.

Streaming DiLoCo: Table 4 of arXiv 2501.18512. Decoupled DiLoCo: arXiv 2604.21428. It does not state model, step and
utilisation for every figure; `DECOUPLED` says what is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from atoll_runtime.simulate.wan.bandwidth import need, utilization
from atoll_runtime.simulate.wan.traffic import Method, Traffic

GRID_RATIO = 10 ** (4 / 49)
"""The values of Table 4 are 50 points from 0.1 to 1000 Gbit/s, evenly spaced in the logarithm. One step is 21 %."""

UTILIZATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)

SITES = 2
"""Assumed for Table 4. With two sites a ring all-reduce moves the model once in each direction."""

DP, DILOCO, STREAMING, OVERLAP = (
    Method.DATA_PARALLEL,
    Method.DILOCO,
    Method.STREAMING,
    Method.STREAMING_OVERLAP,
)

TABLE_4: dict[tuple[str, float, float, int], tuple[tuple[Method, int, tuple[float, ...]], ...]] = {
    ("1B", 1e9, 0.1, 24): (
        (DP, 16, (86.8, 152.6, 184.2, 222.3, 569)),
        (DILOCO, 16, (1.4, 6.2, 13.3, 23.3, 86.8)),
        (STREAMING, 16, (1.4, 5.2, 9.1, 16, 28.1)),
        (OVERLAP, 16, (1.4, 4.3, 6.2, 9.1, 11)),
        (OVERLAP, 4, (0.4, 0.9, 1.7, 2.0, 3.0)),
    ),
    ("100B", 100e9, 4.9, 108): (
        (DP, 16, (184.2, 323.8, 390.7, 390.7, 471.5)),
        (DILOCO, 16, (3, 11, 23.3, 49.4, 184.2)),
        (STREAMING, 16, (2.4, 6.2, 9.1, 11, 19.3)),
        (OVERLAP, 16, (1.7, 3.6, 4.3, 5.2, 5.2)),
        (OVERLAP, 4, (0.5, 0.9, 1.1, 1.1, 1.4)),
    ),
}
"""Model, N, ξ_step in seconds, layers → method, bits, Gbit/s at `UTILIZATIONS`."""

DECOUPLED = "5B, 1 s steps, P = H = 24, int4; data-parallel: bf16, 95 % with 8 sites, 90 % with 2"
"""Assumed for the figures of Decoupled DiLoCo. It gives 0.84 Gbit/s in one direction and 1.7 in both."""


@dataclass(frozen=True)
class Comparison:
    """A published figure, and the one computed here."""

    figure: str
    """Where it was published, and what it describes."""
    computed: float
    published: float
    """The figure, or the lower end of a range."""
    published_most: float | None
    """The upper end; None: open."""
    unit: str = "Gbit/s"
    utilization: float | None = None
    gridded: bool = False
    """The figure is from Table 4, where the values are points of a grid."""

    @property
    def error(self) -> float:
        """Relative, with its sign; 0 within the range."""
        most = math.inf if self.published_most is None else self.published_most
        return self.computed / min(max(self.published, self.computed), most) - 1

    @property
    def grid_steps(self) -> float | None:
        """Distance in steps of the table's grid; None where there is no grid."""
        return math.log(self.computed / self.published) / math.log(GRID_RATIO) if self.gridded else None


def comparisons() -> tuple[Comparison, ...]:
    """Every published figure."""
    return (*_table_4(), *_decoupled())


def _table_4() -> Iterator[Comparison]:
    for (name, params, step, layers), rows in TABLE_4.items():
        for method, bits, cells in rows:
            traffic = Traffic(params=params, step_seconds=step, bits=bits, sites=SITES, layers=layers)
            figure = f"Table 4, {name}, {method}" + (", FP4" if bits == 4 else "")
            for share, gbps in zip(UTILIZATIONS, cells, strict=True):
                computed = need(method, traffic, share).gbps_peak
                yield Comparison(figure, computed, gbps, gbps, utilization=share, gridded=True)


def _decoupled() -> Iterator[Comparison]:
    wide = need(DP, Traffic(params=5e9, step_seconds=1, sites=8), 0.95).gbps_link
    narrow = need(DP, Traffic(params=5e9, step_seconds=1, sites=2), 0.9).gbps_link
    ours = need(Method.DECOUPLED, Traffic(params=5e9, step_seconds=1, bits=4)).gbps_link
    large = Traffic(params=12e9, step_seconds=1, bits=4, sites=4)
    line = need(Method.DECOUPLED, large).gbps_link
    yield Comparison("8 sites, data-parallel", wide, 198, 198, utilization=0.95)
    yield Comparison("8 sites, decoupled, one direction", ours, 0.84, 0.84)
    yield Comparison("8 sites, data-parallel / decoupled", wide / ours, 235.7, 235.7, "x")
    yield Comparison("2 sites, 1 s steps, data-parallel", narrow, 104, 104, utilization=0.9)
    yield Comparison("1 s steps, decoupled, both directions", 2 * ours, 1.7, 1.7)
    yield Comparison("range of the ratio, low end", narrow / (2 * ours), 60, 60, "x")
    yield Comparison("range of the ratio, high end", wide / ours, 242, 242, "x")
    yield Comparison("12B, 4 regions, 1 s steps, one direction", line, 2, 5)
    yield Comparison("12B, 4 regions, 1 s steps, both directions", 2 * line, 2, 5)
    for gbps in (2, 5):
        faster = 1 / utilization(DP, replace(large, bits=16), gbps)
        yield Comparison(f"12B over {gbps} Gbit/s, faster than data-parallel", faster, 20, None, "x")

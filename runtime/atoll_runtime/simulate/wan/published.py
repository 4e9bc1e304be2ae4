"""The published figures on bandwidth, each beside what the same setting gives here.

Streaming DiLoCo: Table 4 of arXiv 2501.18512. Decoupled DiLoCo: arXiv 2604.21428, whose model, step and
utilisation are not known for every figure; `DECOUPLED` says what was taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from atoll_runtime.simulate.wan.bandwidth import need, utilization
from atoll_runtime.simulate.wan.traffic import Method, Traffic

GRID_RATIO = 10 ** (4 / 49)
"""The values of Table 4 are 50 points from 0.1 to 1000 Gbit/s, evenly spaced in the logarithm: a step is 21 %."""

UTILIZATIONS = (0.5, 0.8, 0.9, 0.95, 0.99)

SITES = 2
"""Of Table 4: with two, a ring all-reduce moves the model once in each direction."""

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
"""Taken for the figures of Decoupled DiLoCo: with it 0.84 Gbit/s is the load of one direction, 1.7 of both."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A published figure and ours."""

    figure: str
    """Where it stands, and what it is of."""
    unit: str
    utilization: float | None
    published: float
    """The figure, or the lower end of a range."""
    published_most: float | None
    """The upper end; None: open."""
    computed: float
    error: float
    """Relative, with its sign; 0 within the range."""
    grid_steps: float | None
    """Distance in steps of the table's grid; None where there is no grid."""
    on_grid: float | None
    """The grid's last point that is not above ours: bandwidths in between were not tried by the table's authors."""


def comparisons() -> tuple[Comparison, ...]:
    """Every published figure."""
    return (*_table_4(), *_decoupled())


def floor_on_grid(gbps: float) -> float:
    """The last point of Table 4's grid that is not above `gbps`."""
    return float(0.1 * GRID_RATIO ** math.floor(math.log(gbps / 0.1) / math.log(GRID_RATIO)))


def table_4_traffic(model: tuple[str, float, float, int], bits: int) -> Traffic:
    """The setting of a row."""
    _, params, step, layers = model
    return Traffic(params=params, step_seconds=step, bits=bits, sites=SITES, layers=layers)


def _table_4() -> Iterator[Comparison]:
    for model, rows in TABLE_4.items():
        for method, bits, cells in rows:
            for share, published in zip(UTILIZATIONS, cells, strict=True):
                computed = need(method, table_4_traffic(model, bits), share).gbps_peak
                yield _compare(
                    f"Table 4, {model[0]}, {method}" + (", FP4" if bits == 4 else ""),
                    computed,
                    published,
                    published,
                    share=share,
                    grid=True,
                )


def _decoupled() -> Iterator[Comparison]:
    wide = need(DP, Traffic(params=5e9, step_seconds=1, sites=8), 0.95).gbps_link
    narrow = need(DP, Traffic(params=5e9, step_seconds=1, sites=2), 0.9).gbps_link
    ours = need(Method.DECOUPLED, Traffic(params=5e9, step_seconds=1, bits=4)).gbps_link
    large = Traffic(params=12e9, step_seconds=1, bits=4, sites=4)
    line = need(Method.DECOUPLED, large).gbps_link
    yield _compare("8 sites, data-parallel", wide, 198, 198, share=0.95)
    yield _compare("8 sites, decoupled, one direction", ours, 0.84, 0.84)
    yield _compare("8 sites, data-parallel / decoupled", wide / ours, 235.7, 235.7, unit="x")
    yield _compare("2 sites, 1 s steps, data-parallel", narrow, 104, 104, share=0.9)
    yield _compare("1 s steps, decoupled, both directions", 2 * ours, 1.7, 1.7)
    yield _compare("range of the ratio, low end", narrow / (2 * ours), 60, 60, unit="x")
    yield _compare("range of the ratio, high end", wide / ours, 242, 242, unit="x")
    yield _compare("12B, 4 regions, 1 s steps, one direction", line, 2, 5)
    yield _compare("12B, 4 regions, 1 s steps, both directions", 2 * line, 2, 5)
    for gbps in (2, 5):
        faster = 1 / utilization(DP, replace(large, bits=16), gbps)
        yield _compare(f"12B over {gbps} Gbit/s, faster than data-parallel", faster, 20, None, unit="x")


def _compare(
    figure: str,
    computed: float,
    published: float,
    most: float | None,
    *,
    unit: str = "Gbit/s",
    share: float | None = None,
    grid: bool = False,
) -> Comparison:
    nearest = max(published, computed if most is None else min(computed, most))
    return Comparison(
        figure=figure,
        unit=unit,
        utilization=share,
        published=published,
        published_most=most,
        computed=computed,
        error=computed / nearest - 1,
        grid_steps=math.log(computed / published) / math.log(GRID_RATIO) if grid else None,
        on_grid=floor_on_grid(computed) if grid else None,
    )

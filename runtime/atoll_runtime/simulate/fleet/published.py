"""The published goodput table (Decoupled DiLoCo, arXiv 2604.21428, Table 1), and the cells that set our constants."""

from __future__ import annotations

from atoll_runtime.simulate.fleet.setting import Method

Cell = tuple[Method, int, int]
"""Method, learners, chips."""
SIZES = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
_ROWS: dict[tuple[Method, int], tuple[int | None, ...]] = {
    ("rigid", 1): (72, None, None, 27, 18),
    ("elastic", 1): (88, None, None, 58, 40),
    ("decoupled", 2): (94, None, None, 70, 54),
    ("decoupled", 4): (None,) * 5,
    ("decoupled", 8): (98, None, None, 88, 80),
    ("decoupled", 16): (None,) * 5,
}

GRID: dict[Cell, int | None] = {
    (*row, chips): percent
    for row, percents in _ROWS.items()
    for chips, percent in zip(SIZES, percents, strict=True)
}
"""Goodput in whole per cent, by cell. The paper has more values than are known here; None: not known."""
CALIBRATED: dict[Cell, str] = {
    ("rigid", 1, 1_200_000): "repair",
    ("elastic", 1, 2_400_000): "pause",
    ("decoupled", 8, 1_200_000): "patience",
}
"""The calibration cells, and the constant that each sets. Two or more readings of the paper confirm each value."""

"""The published goodput table (Decoupled DiLoCo, arXiv 2604.21428, Table 1), and which cells set our constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atoll_runtime.simulate.fleet.setting import Fleet, Method

SIZES = (150_000, 300_000, 600_000, 1_200_000, 2_400_000)
ROWS: tuple[tuple[Method, int], ...] = (
    ("rigid", 1), ("elastic", 1), ("decoupled", 2), ("decoupled", 4), ("decoupled", 8), ("decoupled", 16),
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Cell:
    """One place of the table."""

    method: Method
    learners: int
    chips: int

    @property
    def fleet(self) -> Fleet:
        """At one year between the interruptions of a chip."""
        return Fleet(chips=self.chips, learners=self.learners)


_KNOWN: Mapping[tuple[Method, int], tuple[int, int, int]] = {
    ("rigid", 1): (72, 27, 18),
    ("elastic", 1): (88, 58, 40),
    ("decoupled", 2): (94, 70, 54),
    ("decoupled", 8): (98, 88, 80),
}

PUBLISHED: Mapping[Cell, int] = {
    Cell(method, learners, chips): percent
    for (method, learners), percents in _KNOWN.items()
    for chips, percent in zip((150_000, 1_200_000, 2_400_000), percents, strict=True)
}
"""Goodput in per cent, whole numbers. The paper has more rows and columns; these are known here."""

CALIBRATED = {
    Cell("rigid", 1, 1_200_000): "repair",
    Cell("elastic", 1, 2_400_000): "pause",
    Cell("decoupled", 8, 1_200_000): "patience",
}
"""The cells, and the constant that each has set; all three are confirmed by two or more readings of the paper."""

GRID: tuple[Cell, ...] = tuple(Cell(method, learners, chips) for method, learners in ROWS for chips in SIZES)
"""Every cell that is printed, published or not."""

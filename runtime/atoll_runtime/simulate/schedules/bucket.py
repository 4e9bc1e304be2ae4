"""The checkpoint bucket: parts of cuts, and which cuts are whole. As `checkpoint/store.py`, without arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll_runtime.simulate.schedules.content import Value
from atoll_runtime.sync import clocks

KEEP = 2
"""Whole cuts that are kept."""


@dataclass(frozen=True)
class CutPart:
    """What one shard recorded for a cut."""

    step: int
    shard: int
    final: bool
    lineage: str
    values: tuple[Value, ...]
    record: Mapping[str, Any]
    """The machine's, with its vector clock."""


@dataclass(frozen=True)
class WholeCut:
    """A cut of every shard, with the marks of units that recorded themselves in time."""

    step: int
    parts: tuple[CutPart, ...]
    marks: Mapping[str, Mapping[str, int]]

    @property
    def values(self) -> tuple[Value, ...]:
        """Of every fragment, shard by shard."""
        return tuple(value for part in self.parts for value in part.values)


@dataclass
class Bucket:
    """Written to by every shard."""

    shards: int
    parts: dict[tuple[int, int], CutPart] = field(default_factory=dict)
    cuts: dict[int, WholeCut] = field(default_factory=dict)

    def save(self, part: CutPart) -> None:
        """An earlier life's part goes, unless the cut is whole with it."""
        standing = self.parts.get((part.step, part.shard))
        if standing is None or (standing.lineage != part.lineage and part.step not in self.cuts):
            self.parts[part.step, part.shard] = part

    def missing(self, step: int) -> list[int]:
        return [s for s in range(self.shards) if (step, s) not in self.parts]

    def complete(self, step: int, marks: Mapping[str, Mapping[str, int]]) -> str:
        """Makes a cut whole; gives the reason when its parts, which stand, are no consistent cut."""
        if step in self.cuts:
            return ""
        parts = tuple(self.parts[step, s] for s in range(self.shards))
        records = {clocks.shard(part.shard): part.record["vector"] for part in parts} | dict(marks)
        wrong = clocks.inconsistency(records)
        if not wrong:
            self.cuts[step] = WholeCut(step, parts, marks)
        return wrong

    def newest(self) -> WholeCut | None:
        return self.cuts[max(self.cuts)] if self.cuts else None

    def prune(self) -> None:
        """Keeps the newest whole ones; leftovers that are older go too."""
        kept = sorted(self.cuts)[-KEEP:]
        for step in [step for step in self.cuts if step < kept[0]]:
            del self.cuts[step]
        for key in [key for key in self.parts if key[0] < kept[-1] and key[0] not in kept]:
            del self.parts[key]

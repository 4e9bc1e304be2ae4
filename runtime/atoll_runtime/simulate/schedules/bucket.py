"""The checkpoint bucket: parts of cuts, and which cuts are whole. As `checkpoint/store.py`, without arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll_runtime.simulate.schedules.content import Value, Violation
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

    @property
    def of(self) -> tuple[str, bool]:
        """The life of the journal, and whether it is the final cut, which may have the step of one before it."""
        return self.lineage, self.final


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

    def save(self, part: CutPart) -> bool:
        """A part of an earlier life, or of another cut of the same step, goes; false when the cut is whole with it.

        Raises:
            Violation: one life of a journal has two contents for the same cut.
        """
        standing = self.parts.get((part.step, part.shard))
        if standing is None or (standing.of != part.of and part.step not in self.cuts):
            self.parts[part.step, part.shard] = part
        elif standing.of == part.of and standing.values != part.values:
            raise Violation(f"cut {part.step}: shard {part.shard} saves {part.values} over {standing.values}")
        return self.parts[part.step, part.shard].of == part.of

    def missing(self, step: int, final: bool) -> list[int]:
        """Shards whose part of this cut does not stand."""
        found = [self.parts.get((step, s)) for s in range(self.shards)]
        return [s for s, part in enumerate(found) if part is None or part.final != final]

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

"""The checkpoint bucket: parts of cuts, and whole cuts. Like `checkpoint/store.py`, but without files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sim_values import Value, Violation

from atoll_runtime.checkpoint import Cut, Part, Regions, Skipped, StoreError
from atoll_runtime.protocol.identifiers import CutId

if TYPE_CHECKING:
    from sim_shard import ShardProcess
    from sim_world import World

KEEP = 2
"""Number of whole cuts that are kept."""


@dataclass(frozen=True)
class CutPart:
    """What one shard recorded for a cut."""

    part: Part
    values: tuple[Value, ...]

    @property
    def cut(self) -> CutId:
        return CutId(*self.part.meta["machine"]["cut"])

    @property
    def lineage(self) -> str:
        return str(self.part.meta["lineage"])

    @property
    def of(self) -> tuple[str, CutId]:
        """The journal's lineage and the cut. The cut may have the same step as one that shard 0 has forgotten."""
        return self.lineage, self.cut


@dataclass(frozen=True)
class WholeCut:
    """A cut of every shard."""

    step: int
    parts: tuple[CutPart, ...]
    meta: Mapping[str, Any]

    @property
    def values(self) -> tuple[Value, ...]:
        """Values of every fragment, shard by shard."""
        return tuple(value for part in self.parts for value in part.values)

    @property
    def lineages(self) -> list[str]:
        return [part.lineage for part in self.parts]

    def loaded(self, theta: dict[str, Any]) -> Cut:
        """The cut as a store reads it, with these arrays as Θ and momentum."""
        versions = tuple(value.version for value in self.values)
        machines = [part.part.meta["machine"] for part in self.parts]
        meta = {**self.meta, "machines": machines, "lineages": self.lineages}
        return Cut(self.step, theta, dict(theta), versions, meta, len(self.parts))


class SimBucket:
    """The content of the bucket, which every shard writes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.parts: dict[tuple[int, int], CutPart] = {}
        self.cuts: dict[int, WholeCut] = {}
        self.away_until = 0.0
        """Until when it does not answer."""

    def fails(self, probability: float) -> bool:
        """Whether a call fails, because the bucket is away or by chance."""
        return self.world.now < self.away_until or self.world.chance(probability)

    def newest(self) -> WholeCut | None:
        return self.cuts[max(self.cuts)] if self.cuts else None


class SimStore:
    """The bucket for one process of a shard; see `interfaces.Bucket`."""

    uri = "sim://bucket"

    def __init__(self, process: ShardProcess) -> None:
        self._process, self._world, self._bucket = process, process.world, process.world.bucket

    def ready(self) -> None:
        """No call is given up here."""

    def save_part(self, part: Part) -> bool:
        """Replace a part of an earlier lineage, or of another cut of the same step. False if that cut is whole already.

        Raises:
            Violation: one lineage has two contents for the same cut.
        """
        self._answer()
        bucket, mine = self._bucket, CutPart(part, self._values(part))
        if [value.version for value in mine.values] != part.meta["machine"]["versions"]:
            raise Violation(
                f"cut {part.step}: shard {part.shard} records {part.meta}, and saves {mine.values}"
            )
        standing = bucket.parts.get((part.step, part.shard))
        if standing is None or (standing.of != mine.of and part.step not in bucket.cuts):
            bucket.parts[part.step, part.shard] = standing = mine
        elif standing.of == mine.of and standing.values != mine.values:
            raise Violation(f"cut {part.step}: shard {part.shard} saves {mine.values} over {standing.values}")
        self._answer()
        return standing.of == mine.of

    def read_part(self, step: int, shard: int, shards: int) -> Part:
        self._answer()
        found = self._bucket.parts.get((step, shard))
        if found is None:
            raise StoreError(f"no part of shard {shard}")
        return found.part

    def complete(self, step: int, shards: int, meta: dict[str, Any]) -> None:
        """Make a cut whole."""
        self._answer()
        bucket = self._bucket
        if step in bucket.cuts:
            return
        parts = tuple(bucket.parts[step, s] for s in range(shards))
        if len({part.cut for part in parts}) > 1:
            raise StoreError(f"step {step}: the parts are of different cuts")
        bucket.cuts[step] = WholeCut(step, parts, meta)
        self._world.checks.whole(bucket.cuts[step])
        self._answer()

    def newest(self, *, own: Regions | None = None) -> tuple[Cut | None, list[Skipped]]:
        """The newest cut with only this shard's own arrays, which begin another lineage."""
        self._answer()
        cut, process = self._bucket.newest(), self._process
        if cut is None:
            return None, []
        return cut.loaded(process.arrays_of(cut.parts[process.number].values)), []

    def prune(self, keep: int, saved: int, now: float) -> None:
        """Keep the newest whole cuts up to `saved`. Remove parts of older ones too."""
        bucket = self._bucket
        kept = [step for step in sorted(bucket.cuts) if step <= saved][-KEEP:]
        for step in [step for step in bucket.cuts if step < kept[0]]:
            del bucket.cuts[step]
        for key in [key for key in bucket.parts if key[0] < kept[-1] and key[0] not in kept]:
            del bucket.parts[key]

    def _values(self, part: Part) -> tuple[Value, ...]:
        world, values = self._world, []
        for p, fragment in enumerate(world.layout.shard(part.shard).fragments):
            own = part.tensors[fragment.pieces[0].tensor] if fragment.size else None
            values.append(world.empty(part.shard, p) if own is None else world.registry.content(own.theta))
            values[-1].lineage = values[-1].lineage or part.meta["lineage"]
        return tuple(values)

    def _answer(self) -> None:
        """Perhaps fail. A call may fail before or after it has had its effect."""
        if self._bucket.fails(self._world.weather.bucket / 2):
            raise StoreError("the bucket does not answer")

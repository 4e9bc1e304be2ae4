"""A shard's volume in simulated time, what it starts from, and the shard through all its processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from atoll_runtime.simulate.schedules.content import Value
from atoll_runtime.sync import restoring
from atoll_runtime.sync.machine import Syncer
from atoll_runtime.sync.rules import Rules

if TYPE_CHECKING:
    from atoll_runtime.simulate.schedules.shard import ShardProcess
    from atoll_runtime.simulate.schedules.world import World


@dataclass
class Volume:
    """A shard's journal: what was written whole, in order."""

    lineage: str
    values: list[Value]
    record: Mapping[str, Any]
    newest_cut: int | None

    def write(self, record: Mapping[str, Any], newest_cut: int | None) -> None:
        self.record, self.newest_cut = record, newest_cut

    def snapshot(self) -> Volume:
        """As it is now, to be restored later."""
        return replace(self, values=list(self.values))


@dataclass
class ShardSlot:
    """A shard through all its processes."""

    world: World
    rules: Rules
    sizes: tuple[int, ...]
    volume: Volume | None = None
    process: ShardProcess | None = None
    lineages: int = 0
    cut_off_until: float = 0.0

    @property
    def number(self) -> int:
        return self.rules.shard

    def start(self) -> None:
        """A new process, unless one runs."""
        if self.process is None:
            self.process = self.world.launch(self)
            self.process.begin()

    def crash(self) -> None:
        """kill -9: nothing that was not written stays."""
        process, self.process = self.process, None
        if process is not None:
            self.world.log(f"shard {self.number} crashes")
            process.die()

    def lose_volume(self) -> None:
        self.crash()
        self.volume = None

    def restore_volume(self, snapshot: Volume) -> None:
        """The volume is as it was when `snapshot` was taken: later merges are lost, in the same lineage."""
        self.crash()
        self.volume = snapshot
        self.world.checks.went_back(self)


def new_lineage(slot: ShardSlot) -> tuple[Volume, Syncer]:
    """What a shard without a volume starts from: the newest whole cut, else the initial model."""
    slot.lineages += 1
    lineage = f"L{slot.lineages}"
    cut = slot.world.bucket.newest()
    if cut is None:
        values = [
            Value(slot.number, p, lineage, 0, origin=slot.world.initial(slot.number, p))
            for p in range(slot.rules.fragments)
        ]
        machine = Syncer.begin(slot.rules, slot.sizes, [0] * slot.rules.fragments)
    else:
        values = [value.copy(lineage) for value in cut.parts[slot.number].values]
        machines = [part.record for part in cut.parts]
        own = [value.version for value in values]
        machine = restoring.continued(slot.rules, slot.sizes, machines, own, cut.step, f"cut/{cut.step}")
    return Volume(lineage, values, machine.record(), None if cut is None else cut.step), machine

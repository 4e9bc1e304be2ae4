"""A shard of a schedule through all its processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from atoll_runtime.simulate.schedules import shard
from atoll_runtime.simulate.schedules.shard import ShardProcess
from atoll_runtime.simulate.schedules.volume import Volume
from atoll_runtime.sync.rules import Rules


class World(shard.World, Protocol):
    """What a shard needs of the world."""

    def launch(self, shard: ShardSlot) -> ShardProcess: ...


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

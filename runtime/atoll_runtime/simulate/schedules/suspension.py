"""A run on its way to suspension in simulated time: the part of `atoll_operator/polling/syncer.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from atoll_runtime.simulate.schedules.content import Violation
from atoll_runtime.simulate.schedules.shard import ShardProcess
from atoll_runtime.simulate.schedules.shardslot import ShardSlot
from atoll_runtime.simulate.schedules.surroundings import Surroundings
from atoll_runtime.sync.events import CutId, CutOrdered

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 60.0
"""From then on the run is resumed as it is; in calm weather the cut must have come."""


class World(Surroundings, Protocol):
    """What a suspension needs of the world."""

    shards: list[ShardSlot]
    calm_since: float | None

    def resume(self) -> None: ...


class Suspension:
    """No unit is left; every process of a shard is asked once for the cut that holds all, until it stands."""

    def __init__(self, world: World) -> None:
        self.alive = True
        self._world, self._began = world, world.now
        self._ordered: dict[int, tuple[ShardProcess, int]] = {}
        """What each shard was asked for, and in which life."""
        world.at(POLL_SECONDS, self, self._poll)

    def _poll(self) -> None:
        world = self._world
        processes = [slot.process for slot in world.shards if slot.process is not None]
        saved = self._saved(processes) if len(processes) == len(world.shards) else None
        if saved is not None:
            for process in processes:
                world.checks.suspended(process, saved)
            self._end()
        elif world.now - max(self._began, world.calm_since or 0.0) > PATIENCE_SECONDS:
            # An order does not go before a final cut of the run's target, which may need units to be whole.
            ends = any(each.machine.finishing and not each.machine.outdated for each in processes)
            if world.calm_since is not None and not ends:
                raise Violation(
                    f"no cut {PATIENCE_SECONDS:g} s after all units have left: {world.checks.why()}"
                )
            self._end()
        else:
            world.at(POLL_SECONDS, self, self._poll)

    def _saved(self, processes: Sequence[ShardProcess]) -> int | None:
        """The newest cut, if it holds everything; else each shard is asked for the next one."""
        newest = processes[0].saver.newest
        reached = max(
            max(value.version for process in processes for value in process.state),
            max(process.machine.orderable for process in processes),
        )
        current = all(process.current for process in processes)
        if newest is not None and newest >= reached and current:
            return newest
        step = reached if newest is None or newest < reached else newest + 1
        for s, process in enumerate(processes):
            follows = s == 0 or processes[0].machine.orderable >= step
            if follows and self._ordered.get(s) != (process, step):
                self._ordered[s] = process, step
                process.feed(CutOrdered(CutId(step)))
        return None

    def _end(self) -> None:
        self.alive = False
        self._world.resume()

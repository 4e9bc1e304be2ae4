"""A run on its way to suspension in simulated time: the operator's part of it, as `atoll_operator/feed.py` has it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim_values import Violation

if TYPE_CHECKING:
    from sim_shard import ShardProcess
    from sim_world import World

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 200.0
"""From then on the run is resumed as it is; in calm weather the cut must have come."""


class Suspension:
    """No unit is left; shard 0 is asked for a cut that holds all, until one stands."""

    def __init__(self, world: World) -> None:
        self._world, self._began = world, world.now
        self._ordered: tuple[ShardProcess, int] | None = None
        """What shard 0 was asked for, and in which life."""
        world.at(POLL_SECONDS, None, self._poll)

    def _poll(self) -> None:
        world = self._world
        processes = [
            slot.process for slot in world.shards if slot.process is not None and slot.process.service
        ]
        saved = self._saved(processes) if len(processes) == len(world.shards) else None
        if saved is not None:
            for process in processes:
                world.checks.suspended(process, saved)
            self._end()
        elif world.now - max(self._began, world.calm_since or 0.0) > PATIENCE_SECONDS:
            # An order does not go before the end of the run, which may need units.
            ends = any(each.machine.orders.ending or each.machine.final for each in processes)
            if world.calm_since is not None and not ends:
                raise Violation(
                    f"no cut {PATIENCE_SECONDS:g} s after all units have left: {world.checks.why()}"
                )
            self._end()
        else:
            world.at(POLL_SECONDS, None, self._poll)

    def _saved(self, processes: Sequence[ShardProcess]) -> int | None:
        """The newest cut, if it holds everything; else shard 0 is asked for the next one."""
        first, newest = processes[0], processes[0].newest_cut
        reached = max(
            max(value.version for process in processes for value in process.state),
            max(process.machine.orderable for process in processes),
        )
        current = all(process.current for process in processes)
        if newest is not None and newest >= reached and current:
            return newest
        step = reached if newest is None or newest < reached else newest + 1
        if self._ordered != (first, step):
            self._ordered = first, step
            first.context.run(first.driver.cut, step)
        return None

    def _end(self) -> None:
        self._world.resume()

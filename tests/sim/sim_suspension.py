"""The suspension of a run in simulated time, as the operator carries it out (`polling.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim_values import Violation

from atoll_operator.plan.run.syncer_state import CheckpointOrder, next_checkpoint_step
from atoll_runtime.protocol.events import CutOrdered

if TYPE_CHECKING:
    from sim_world import World

POLL_SECONDS = 1.0
PATIENCE_SECONDS = 200.0
"""After this time the run is resumed. In calm weather the cut must be whole by then."""


class Suspension:
    """No unit is left. Shard 0 is asked for a cut that holds every merge until there is one."""

    def __init__(self, world: World) -> None:
        self._world, self._began = world, world.now
        self._order: CheckpointOrder | None = None
        """The newest order to shard 0."""
        world.at(POLL_SECONDS, None, self._poll)

    def _poll(self) -> None:
        world = self._world
        processes = [
            slot.process for slot in world.shards if slot.process is not None and slot.process.service
        ]
        saved = self._saved()
        if saved is not None:
            for process in processes:
                world.checks.suspended(process, saved)
            self._end()
        elif world.now - max(self._began, world.calm_since or 0.0) > PATIENCE_SECONDS:
            # The end of the run goes before an order, and may need units.
            ends = any(each.machine.orders.ending or each.machine.final for each in processes)
            if world.calm_since is not None and not ends:
                raise Violation(
                    f"no cut {PATIENCE_SECONDS:g} s after all units have left: {world.checks.why()}"
                )
            self._end()
        else:
            world.at(POLL_SECONDS, None, self._poll)

    def _saved(self) -> int | None:
        """The newest cut, if it holds everything. Otherwise asks shard 0 for the next one."""
        first = self._world.shards[0].process
        if first is None or first.service is None:
            return None
        report = first.status.report()
        step = next_checkpoint_step(report, self._order)
        if self._order is None or self._order.step != step:
            self._order = CheckpointOrder(step)
        if report.checkpoint.current:
            return step
        first.context.run(first.driver.feed, CutOrdered(step))
        return None

    def _end(self) -> None:
        self._world.resume()

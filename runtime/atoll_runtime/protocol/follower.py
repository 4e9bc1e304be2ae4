"""What a shard other than 0 does with what shard 0 has decided."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.protocol.events import Event
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Orders
from atoll_runtime.protocol.units import Unit


@dataclass
class Follower(Syncer):
    """A shard other than 0. It merges its own tensors by shard 0's clock."""

    def _hear(self, event: Event, now: float) -> None:
        if isinstance(event, Orders):
            self._take_orders(event, now)

    def _take_orders(self, orders: Orders, now: float) -> None:
        before, self.orders = self.orders, orders
        self.rounds.seconds, self.rounds.quickest = orders.seconds, orders.fastest
        if orders.silent != before.silent:
            self.rounds.hush(dict(orders.silent), now)
        if orders.final and not self.final:
            self._finished(orders.final)

    def _met(self, unit: Unit) -> None:
        unit.hushed = (unit.name, unit.incarnation) in self.orders.silent

    def _conclude(self) -> None:
        """Records this shard for the cut that shard 0 has begun. Saves the newest cut again if an earlier process
        recorded it, this one has not saved it, and nothing was merged since."""
        cut, cuts = self.orders.cut, self.cuts
        if cut > cuts.newest:
            if cut.final:
                # After a crash that made this shard forget that it was done, rounds may be collecting again.
                self.rounds.close("the final cut has begun")
            if not (cut.final and self.rounds.held):
                self._record(cut)
        elif cut == cuts.newest and cuts.saving != cut and cuts.merges == self.rounds.merges:
            self._save()

"""A shard's volume in simulated time, and what a shard without one starts from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atoll_runtime.simulate.schedules.bucket import WholeCut
from atoll_runtime.simulate.schedules.content import Value
from atoll_runtime.sync import restoring
from atoll_runtime.sync.machine import Syncer
from atoll_runtime.sync.rules import Rules


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


def new_lineage(
    rules: Rules, sizes: tuple[int, ...], lineage: str, cut: WholeCut | None, initial: Callable[[int], Value]
) -> tuple[Volume, Syncer]:
    """What a shard without a volume starts from: the newest whole cut, else the initial model's fragments."""
    if cut is None:
        values = [Value(rules.shard, p, lineage, 0, origin=initial(p)) for p in range(rules.fragments)]
        machine = Syncer.begin(rules, sizes, [0] * rules.fragments)
    else:
        values = [value.copy(lineage) for value in cut.parts[rules.shard].values]
        machines = [part.record for part in cut.parts]
        own = [value.version for value in values]
        machine = restoring.continued(rules, sizes, machines, own, cut.step, f"cut/{cut.step}")
    return Volume(lineage, values, machine.record(), None if cut is None else cut.step), machine

"""How many units each pool has: its own number, or its share of the number that the whole run was scaled to."""

from __future__ import annotations

from collections.abc import Iterator

from atoll_operator.api.pool import MAX_UNITS
from atoll_operator.api.trainingrun import TrainingRunSpec
from atoll_operator.plan.pods.names import unit_name
from atoll_operator.plan.run.streams import Slot


def sizes(spec: TrainingRunSpec) -> dict[str, int]:
    """Units by pool, in the order of the spec.

    A total fills the pools in order, each up to its own `units`, so that the last pools shrink first; what is more goes
    to the first pool, and to the next where one is full.
    """
    own = {pool.name: pool.units for pool in spec.pools}
    if spec.units is None:
        return own
    left, result = spec.units, {}
    for name, units in own.items():
        result[name] = min(units, left)
        left -= result[name]
    for name in result:
        more = min(MAX_UNITS - result[name], left)
        result[name] += more
        left -= more
    return result


def slots(spec: TrainingRunSpec) -> Iterator[Slot]:
    """Every unit that is wanted. In order of pool names: the order of a list is no reason to deal streams anew."""
    for pool, units in sorted(sizes(spec).items()):
        for index in range(units):
            yield pool, index


def names(run: str, spec: TrainingRunSpec) -> list[str]:
    """Of the units that are wanted."""
    return [unit_name(run, *slot) for slot in slots(spec)]

"""What a host could do at a step, and what all hosts of the unit can."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from atoll_runtime.learner.exchange import Arrival
from atoll_runtime.transport.messages import Pull

NOTHING = -1
"""No arrival, no pull."""


class Ending(IntEnum):
    """Why the loop ends; of several hosts' reasons the highest counts."""

    NONE = 0
    STOPPED = 1
    """The syncer's clock has reached the target."""
    TERMINATED = 2
    """SIGTERM."""
    REFUSED = 3
    FENCED = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """One host's newest arrivals and pulls, by fragment."""

    arrivals: dict[int, Arrival]
    pulls: dict[int, Pull]
    ending: Ending = Ending.NONE

    def values(self, fragments: int) -> np.ndarray:
        """int32 [3·fragments + 1]: versions, round steps, round attempts, ending."""
        table = np.full((3, fragments), NOTHING, np.int32)
        for number, arrival in self.arrivals.items():
            table[0, number] = arrival.version
        for number, pull in self.pulls.items():
            table[1:, number] = pull.round.step, pull.round.attempt
        return np.append(table.reshape(-1), np.int32(self.ending))

    def agreed(self, low: np.ndarray, high: np.ndarray) -> Proposal:
        """The part of it that every host proposed: where minimum and maximum over the hosts are equal."""
        same = np.where(low == high, low, NOTHING)[:-1].reshape(3, -1)
        return Proposal(
            arrivals={number: one for number, one in sorted(self.arrivals.items()) if same[0, number] >= 0},
            pulls={
                number: one
                for number, one in sorted(self.pulls.items())
                if same[1, number] >= 0 and same[2, number] >= 0
            },
            ending=Ending(int(high[-1])),
        )

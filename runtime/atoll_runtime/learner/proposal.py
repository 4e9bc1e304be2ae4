"""What a host could do at a step, and what all hosts of the unit can."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from atoll_runtime.learner.client import Arrival
from atoll_runtime.protocol.identifiers import NO_CUT, CutId
from atoll_runtime.protocol.link import Ask

NOTHING = -1
"""No arrival, no pull."""
WHOLE = 2**30
"""All of a target, where hosts agree on how much of it is done: they agree in int32, and tokens are more."""


class Ending(IntEnum):
    """Why the loop ends; of several hosts' reasons the highest counts."""

    NONE = 0
    STOPPED = 1
    """The syncer's clock has reached the target."""
    TERMINATED = 2
    """SIGTERM."""
    MISMATCHED = 3
    """The syncer speaks another protocol."""
    REFUSED = 4
    FENCED = 5


@dataclass(frozen=True, slots=True)
class Proposal:
    """One host's newest arrivals and pulls, by fragment; what it has seen of cuts, and would copy to the host."""

    arrivals: dict[int, Arrival]
    pulls: dict[int, Ask]
    cut: CutId = NO_CUT
    capture: int = NOTHING
    """The fragment to take a snapshot of."""
    ending: Ending = Ending.NONE
    done: int = 0
    """How much of the target in tokens is merged, of `WHOLE`."""
    missing: dict[int, int] = field(default_factory=dict)
    """Once agreed: versions that another host has and this one has not, by fragment."""

    def values(self, fragments: int) -> np.ndarray:
        """int32 [4·fragments + 5]: versions, their lineages, round steps, attempts; then the facts."""
        table = np.full((4, fragments), NOTHING, np.int32)
        for number, arrival in self.arrivals.items():
            table[:2, number] = arrival.version, zlib.crc32(arrival.lineage.encode()) >> 1
        for number, pull in self.pulls.items():
            table[2:, number] = pull.round.step, pull.round.attempt
        cut = self.cut
        facts = [cut.number, 2 * cut.step + cut.final, self.capture, self.ending, self.done]
        return np.append(table.reshape(-1), np.array(facts, np.int32))

    def agreed(self, low: np.ndarray, high: np.ndarray) -> Proposal:
        """What every host proposed: where minimum and maximum over the hosts are equal.

        A cut that any host has seen counts for all, for a message sent after it may be next at any of them; and
        what any host would copy, all copy, for it is a collective program. Of the target, what all know is done.
        Hosts that fetched at different times may have different versions: all need the newest of them.
        """
        same = np.where(low == high, low, NOTHING)
        table = same[:-5].reshape(4, -1)
        step, final = divmod(int(high[-4]), 2)
        newest = high[: (len(high) - 5) // 4].tolist()
        mine = {number: one.version for number, one in self.arrivals.items()}
        return Proposal(
            arrivals={
                number: one
                for number, one in sorted(self.arrivals.items())
                if table[0, number] >= 0 and table[1, number] >= 0
            },
            pulls={
                number: one
                for number, one in sorted(self.pulls.items())
                if table[2, number] >= 0 and table[3, number] >= 0
            },
            cut=CutId(int(high[-5]), step, bool(final)),
            capture=int(high[-3]),
            ending=Ending(int(high[-2])),
            done=int(low[-1]),
            missing={n: version for n, version in enumerate(newest) if version > mine.get(n, NOTHING)},
        )

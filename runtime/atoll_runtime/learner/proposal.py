"""What one host can do before a step, and what all hosts of the unit can do."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np

from atoll_runtime.learner.transfers import Arrival
from atoll_runtime.protocol.identifiers import NO_CUT, CutId
from atoll_runtime.protocol.shardview import PullRequest

NOTHING = -1
"""No arrival, pull or capture."""
WHOLE = 2**30
"""Stands for a whole target when hosts agree on how much of it is done. They use int32, which tokens can exceed."""


class Ending(IntEnum):
    """Why the loop ends. If the hosts have several reasons, the highest counts."""

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
class StepProposal:
    """One host's newest arrivals and pulls, by fragment, its newest cut, and the fragment that it would capture."""

    arrivals: dict[int, Arrival]
    pulls: dict[int, PullRequest]
    cut: CutId = NO_CUT
    capture: int = NOTHING
    """The fragment to take a snapshot of."""
    ending: Ending = Ending.NONE
    done: int = 0
    """How much of the target in tokens is merged, where `WHOLE` is all of it."""
    coming: dict[int, int] = field(default_factory=dict)
    """Versions that are here, proposed or not, or on their way, by fragment."""
    contested: dict[int, int] = field(default_factory=dict)
    """Once agreed: the newest version that any host has or fetches, by fragment, where not all do."""

    def values(self, fragments: int) -> np.ndarray:
        """int32 [5·fragments + 5]: versions, their lineages, round steps, attempts, versions that are here or on their
        way; then the facts."""
        cut = self.cut
        facts = [cut.number, 2 * cut.step + cut.final, self.capture, self.ending, self.done]
        values = [NOTHING] * (5 * fragments) + facts
        for number, arrival in self.arrivals.items():
            values[number] = arrival.version
            values[fragments + number] = zlib.crc32(arrival.lineage.encode()) >> 1
        for number, pull in self.pulls.items():
            values[2 * fragments + number] = pull.round.step
            values[3 * fragments + number] = pull.round.attempt
        for number, version in self.coming.items():
            values[4 * fragments + number] = version
        return np.array(values, np.int32)

    def agreed(self, low: np.ndarray, high: np.ndarray) -> StepProposal:
        """What every host proposed: arrivals and pulls for which minimum and maximum over the hosts are equal.

        A cut that any host has seen counts for all, because a message sent after it may come next at any of them.
        If any host would capture a fragment, all do, because a capture is a collective program. Of what the hosts know
        to be done of the target, the smallest part counts. Hosts that fetch at different times may get different
        versions, because the shard sends the newest that it has. Then all need the newest of them.
        """
        *least, _, _, _, _, done = low.tolist()
        *most, cut, step, capture, ending, _ = high.tolist()
        fragments = len(most) // 5
        same = [one == other >= 0 for one, other in zip(least, most, strict=True)]
        versions, lineages, steps, attempts = (
            same[n : n + fragments] for n in range(0, 4 * fragments, fragments)
        )
        coming = zip(least[4 * fragments :], most[4 * fragments :], strict=True)
        return StepProposal(
            arrivals={n: one for n, one in sorted(self.arrivals.items()) if versions[n] and lineages[n]},
            pulls={n: one for n, one in sorted(self.pulls.items()) if steps[n] and attempts[n]},
            cut=CutId(cut, step // 2, bool(step % 2)),
            capture=capture,
            ending=Ending(ending),
            done=done,
            contested={n: newest for n, (oldest, newest) in enumerate(coming) if oldest < newest},
        )

"""Names of rounds and cuts, and the ranges of numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

LAST_STEP = 2**30 - 2**20
"""The last step of a shard's clock, beyond any target (10⁹). Hosts of a unit agree on twice a cut's step in int32."""
Step = Annotated[int, Meta(ge=0, le=LAST_STEP)]
Version = Annotated[int, Meta(ge=-1, le=LAST_STEP)]
MOST_TOKENS = 10**15
"""Most tokens of an incarnation. A unit with more in all gets no further incarnation. So its ledger, which counts them
once for each of up to 1,024 fragments, fits into the journal and into the run's status (64 bits)."""
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Figure = Annotated[float, Meta(ge=0, le=1e12)]
Count = Annotated[int, Meta(ge=0, le=10**12)]
"""Any other measure (`Figure`) or count. Unix seconds are below the limit."""
NOTHING = -1
"""Stands for a version: the host holds no version of this fragment."""


@dataclass(frozen=True, order=True)
class RoundId:
    """One attempt to merge one fragment at one global step."""

    step: int
    fragment: int
    attempt: int
    series: str = ""
    """Names the life of the shard. After a restart it opens the same steps again. It does not know when the earlier
    rounds asked, so answers to them do not count."""

    def __str__(self) -> str:
        again = f" (attempt {self.attempt + 1})" if self.attempt else ""
        return f"step {self.step} of fragment {self.fragment}{again}"


@dataclass(frozen=True, order=True)
class CutId:
    """A consistent cut of the whole run. Only shard 0 begins one."""

    number: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    """Later cuts have higher numbers, even if shard 0 has lost its volume, because the first cut of a process has at
    least the second in which the process started. 0 is the initial state of the run."""
    step: Version = field(default=0, compare=False)
    """Global step at which shard 0 recorded itself. It names the cut in the bucket."""
    final: bool = field(default=False, compare=False)


NO_CUT = CutId(-1, -1)
CUT_EPOCH = 1_577_836_800
"""Unix seconds of 2020-01-01 UTC. Numbers of cuts count from here, because hosts of a unit agree on them in int32."""

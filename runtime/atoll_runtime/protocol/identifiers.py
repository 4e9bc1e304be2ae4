"""How rounds and cuts are named, and how far numbers go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta

LAST_STEP = 2**30 - 2**20
"""Of a shard's clock: further than any target (10⁹). Hosts of a unit agree on twice a cut's step in int32."""
Step = Annotated[int, Meta(ge=0, le=LAST_STEP)]
Version = Annotated[int, Meta(ge=-1, le=LAST_STEP)]
MOST_TOKENS = 10**15
"""Of an incarnation: far from what a record of the journal holds, also when a ledger has counted them for every
fragment."""
Tokens = Annotated[int, Meta(ge=0, le=MOST_TOKENS)]
Figure = Annotated[float, Meta(ge=0, le=1e12)]
Count = Annotated[int, Meta(ge=0, le=10**12)]
"""Anything else that is measured or counted; Unix seconds are less."""
NOTHING = -1
"""In the place of a version: of this fragment a host holds none."""


@dataclass(frozen=True, order=True)
class RoundId:
    """One attempt to merge one fragment at one global step."""

    step: int
    fragment: int
    attempt: int
    series: str = ""
    """Names the life of the shard: after a restart it opens the same steps again, and does not know when what comes as
    an answer to the earlier ones was asked."""

    def __str__(self) -> str:
        again = f" (attempt {self.attempt + 1})" if self.attempt else ""
        return f"step {self.step} of fragment {self.fragment}{again}"


@dataclass(frozen=True, order=True)
class CutId:
    """A consistent cut of the whole run. Shard 0 alone begins one."""

    number: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    """Later cuts have higher ones, also where shard 0 has lost its volume: the first cut of a process has the second in
    which it started. 0: what the run begins with."""
    step: Version = field(default=0, compare=False)
    """Global step at which shard 0 recorded itself: names the cut in the bucket."""
    final: bool = field(default=False, compare=False)


NO_CUT = CutId(-1, -1)
CUT_EPOCH = 1_577_836_800
"""Unix seconds of 2020-01-01 UTC, from which numbers of cuts count: hosts of a unit agree on them in int32."""

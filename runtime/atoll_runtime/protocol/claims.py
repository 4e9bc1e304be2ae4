"""What a contribution may say of the work in it: tokens against its unit's batch, steps against the time that passed.

Both decide how much it counts. A unit that counts wrong (a counter that overflowed, an altered image) would otherwise
take over every merge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain

FASTER = 4.0
"""A unit's steps may on average be so many times shorter than the shortest reported step of a live
unit: not every step is reported, and clocks differ."""
SPARE = 16
"""Steps besides: those of a unit that has just joined, and has not told its pace."""


def step_tokens(known: Mapping[str, Sequence[int]], unit: str) -> Sequence[int]:
    """Tokens of one step of this unit: as told by its name, else by that of its pool's units; empty where not known.

    More than one while a pool's units change their batch one after the other.
    """
    pool, _, number = unit.rpartition("-")
    return known.get(unit) or (known.get(pool, ()) if number.isdigit() else ())


def impossible(
    steps: int, tokens: int, known: Mapping[str, Sequence[int]], unit: str, *, elapsed: float, fastest: float
) -> str:
    """Why a unit cannot have made so many steps on so many tokens in this time; empty when it can.

    Args:
        known: tokens of one step, as of `step_tokens`. A unit that is not in there has the largest at most.
        elapsed: seconds since units were first asked for what is in the version of its newest merged contribution,
            which it took later; infinite where this process does not know. Of a unit that has none, how old its anchor
            is, and as long again as an anchor may be old.
        fastest: seconds of the shortest step of a live unit; 0 where none is known.
    """
    own = step_tokens(known, unit)
    if own:
        if all(tokens != steps * each for each in own):
            wanted = " or ".join(str(steps * each) for each in own)
            return f"tokens: {tokens} in {steps} steps, in which a unit of its batch trains on {wanted}"
    elif tokens > (largest := steps * max(chain.from_iterable(known.values()), default=math.inf)):
        return f"tokens: {tokens} in {steps} steps, in which the run's largest batch trains on {largest}"
    most = SPARE + FASTER * elapsed / fastest if fastest > 0 else math.inf
    if steps > most:
        return f"steps: {steps} in {elapsed:.3g} s, which have time for {most:.0f}"
    return ""

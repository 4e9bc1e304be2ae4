"""Two loops' phases in pairs, and what they say of the loops' rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_bench.figures import spread


@dataclass(frozen=True)
class Pair:
    """A phase of each loop, one right after the other, the same number of steps; seconds."""

    steps: int
    plain: float
    exchange: float
    """With the tail."""
    tail: float
    """Of `exchange`: what was left to do after the last step."""
    plain_cores: float
    exchange_cores: float
    """Seconds of a core, without waiting; those of the syncer too where both share cores."""


@dataclass(frozen=True)
class Rates:
    """In inner steps a second."""

    pairs: int
    steps: int
    """Of each loop, in all phases."""
    plain: float
    exchange: float
    """Medians over pairs, as `ratio` is."""
    ratio: float
    """Plain seconds / exchange seconds of a pair."""
    ratio_quartiles: tuple[float, float]
    ratio_of_totals: float
    """The same of all pairs together: none with a heavy save is left out."""
    ratio_of_core_time: float
    """And of seconds of a core: nearly the ratio on a machine that does nothing else, whatever others do."""
    tail: float
    """Share of the exchange's seconds that was added for what came after a last step."""


def rates(pairs: Sequence[Pair]) -> Rates:
    """Of one pair at least."""
    ratio, low, high = spread([pair.plain / pair.exchange for pair in pairs])
    exchange = sum(pair.exchange for pair in pairs)
    return Rates(
        pairs=len(pairs),
        steps=sum(pair.steps for pair in pairs),
        plain=spread([pair.steps / pair.plain for pair in pairs])[0],
        exchange=spread([pair.steps / pair.exchange for pair in pairs])[0],
        ratio=ratio,
        ratio_quartiles=(low, high),
        ratio_of_totals=sum(pair.plain for pair in pairs) / exchange,
        ratio_of_core_time=sum(pair.plain_cores for pair in pairs)
        / sum(pair.exchange_cores for pair in pairs),
        tail=sum(pair.tail for pair in pairs) / exchange,
    )

"""Rates of two loops, from pairs of phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll_bench.figures import spread


@dataclass(frozen=True)
class Pair:
    """Seconds of two consecutive phases, one of each loop, with the same number of steps."""

    steps: int
    plain: float
    exchange: float
    """Includes the tail."""
    tail: float
    """The part of `exchange` after the last step."""
    plain_cores: float
    exchange_cores: float
    """CPU seconds; includes the syncer if both share cores."""


@dataclass(frozen=True)
class Rates:
    """Inner steps per second."""

    pairs: int
    steps: int
    """Steps of each loop in all phases."""
    plain: float
    exchange: float
    """Medians over pairs, as `ratio` is."""
    ratio: float
    """Plain seconds / exchange seconds of a pair."""
    ratio_quartiles: tuple[float, float]
    ratio_of_totals: float
    """The same of all pairs together, including those with a save."""
    ratio_of_core_time: float
    """The same of CPU seconds: close to the ratio on an idle machine, whatever else runs here."""
    tail: float
    """The tails' share of the exchange's seconds."""


def rates(pairs: Sequence[Pair]) -> Rates:
    """Rates of at least one pair."""
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

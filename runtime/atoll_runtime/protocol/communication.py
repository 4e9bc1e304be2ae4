"""How a host uses its link: codec, streams, chunk, and how often it takes part. Pure: times are passed in.

The transfers of every round should take at most 0.7 of an interval in the slower direction. The widest codec that
achieves this is chosen. If none does, the unit takes part in fewer rounds; `linkshare` decides in which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, get_args

from atoll_runtime.contract import Codec, CommunicationSpec
from atoll_runtime.contract.specs import MOST_STREAMS
from atoll_runtime.protocol.linkmeter import LinkUse
from atoll_runtime.protocol.linkshare import USED

CODECS: tuple[str, ...] = get_args(Codec)
"""From wide to narrow."""
BITS = {"float32": 32.0, "bf16": 16.0, "int8": 8.25, "int4": 4.25}
"""Bits of an element on the wire, with the scales of blocks (`transport/blocks.py`)."""
SHORT = 0.05
"""Seconds of a transfer. A shorter transfer gains nothing from a narrower codec, because latency dominates it."""
GOAL, WIDEN = 0.7, 0.55
"""Share of an interval that transfers may take, and the share up to which a wider codec is taken up again."""
GOAL_CHANGES, WIDEN_CHANGES = 1.2, 1.0
"""The same for changes in int4. They are higher because no narrower mode carries every round: one that skips rounds
fetches int8, nearly twice the bits, so it is in half of them. The first intervals of a run seem short, too."""
STREAM_BYTES = 4 << 20
"""Bytes on the way at a time on one connection."""
FIRST_STREAMS = 4
AHEAD, MOST_CHOSEN = 1.5, 16
"""Streams are chosen for this many times the measured rate, because too few may have limited it. The second number is
the most streams that are chosen."""
CHUNK_SECONDS, LEAST_CHUNK, MOST_CHUNK = 0.05, 64, 4096
"""Seconds of a chunk on one stream, and the bounds of its size in KiB."""
STEADY = 1.2
"""A period that differs from the current one by a smaller factor does not replace it."""


def carries(codec: str, widest: str) -> bool:
    """Whether hosts may push `codec` in a run with the codec `widest`."""
    return codec in CODECS and CODECS.index(codec) >= CODECS.index(widest)


def serves(codec: str, widest: str) -> bool:
    """Whether hosts may fetch `codec` in such a run: in every run int8 too, because int4 is a change from the version
    before."""
    return codec == "int8" or carries(codec, widest)


@dataclass(frozen=True)
class Observed:
    """What the link and the run have shown."""

    up: float
    """Recent bits per second to the syncer; infinite while not known."""
    down: float
    """The same from the syncer."""
    round_trip: float
    """Seconds; 0 while not known."""
    interval: float
    """Seconds between two rounds of a fragment; 0 while not known."""
    elements: int
    """Elements that this host sends, of all fragments."""
    transfers: int
    """Transfers in which these are sent once."""

    @property
    def known(self) -> bool:
        """The rates of both directions are known."""
        return math.isfinite(self.up) and math.isfinite(self.down)


@dataclass(frozen=True)
class Rules:
    """The settings of the run."""

    fixed: CommunicationSpec
    widest: str
    """The run's codec."""
    exact: bool = False
    """All units have the same codec. They must hold the same bits of a version, because audits compare what they
    compute with it."""

    @cached_property
    def modes(self) -> tuple[Mode, ...]:
        """The modes that can be chosen, from wide to narrow."""
        return self.allowed(self.fixed.codec or (self.widest if self.exact else None))

    def allowed(self, codec: str | None) -> tuple[Mode, ...]:
        """The modes of one codec, or of all."""
        names = [name for name in CODECS if carries(name, self.widest) and codec in (None, name)]
        modes = [Mode(name, name) for name in names]
        if names[-1] == "int4" and not self.exact:
            if (self.fixed.period or 1) > 1:
                modes.pop()
            modes.append(Mode("int4", "int8"))
        return tuple(modes)


@dataclass(frozen=True)
class Mode:
    """Codecs of the two directions. A version in int4 is the change from the one before, so a unit that misses versions
    fetches int8."""

    push: str
    fetch: str

    def slower(self, seen: Observed) -> tuple[float, float]:
        """Bits of an element and bits per second, for the direction that takes longer."""
        return max(
            (BITS[self.push], seen.up), (BITS[self.fetch], seen.down), key=lambda each: each[0] / each[1]
        )

    def load(self, seen: Observed) -> float:
        """Share of an interval that the transfers of every round take."""
        bits, rate = self.slower(seen)
        return seen.elements * bits / rate / seen.interval if seen.interval else 0.0

    @property
    def goal(self) -> float:
        """The load up to which the mode is kept."""
        return GOAL_CHANGES if self.fetch == "int4" else GOAL

    @property
    def widen(self) -> float:
        """The load up to which the mode replaces a narrower one."""
        return WIDEN_CHANGES if self.fetch == "int4" else WIDEN


@dataclass(frozen=True)
class Communication(LinkUse):
    """What is chosen, and since when."""

    since: float = -math.inf
    """When it was chosen. The next change is possible an interval later."""

    @classmethod
    def begin(cls, rules: Rules) -> Communication:
        """The choice before anything was measured."""
        first, fixed = rules.modes[0], rules.fixed
        streams, chunk = fixed.streams or FIRST_STREAMS, fixed.chunk_kib or 1024
        return cls(first.push, streams, chunk, float(fixed.period or 1), fetch=first.fetch)

    @cached_property
    def use(self) -> LinkUse:
        """The choice as it is reported."""
        return LinkUse(**{name: getattr(self, name) for name in LinkUse.__dataclass_fields__})

    @property
    def bits(self) -> tuple[float, float]:
        """Bits of an element of a contribution, and of a version."""
        return BITS[self.codec], BITS[self.fetch]


def choose(now: float, current: Communication, seen: Observed, rules: Rules) -> Communication:
    """What to use from now on. Once both rates are measured, it changes at most once in an interval."""
    if not seen.interval:
        return _wanted(current, seen, rules)
    found = current
    if now >= current.since + seen.interval:
        wanted = _wanted(current, seen, rules)
        if wanted is not current:
            found = replace(wanted, since=now) if seen.known else wanted
    mode = Mode(found.codec, found.fetch)
    news = found is not current or not current.reason
    load, advice = mode.load(seen), _advice(mode, seen, rules)
    reason = _reason(mode, seen, rules) if news else current.reason
    return _changed(found, load=load, advice=advice, reason=reason)


def _wanted(current: Communication, seen: Observed, rules: Rules) -> Communication:
    """What fits the link now: `current` if its settings still fit well enough."""
    fixed = rules.fixed
    rate = max((each for each in (seen.up, seen.down) if math.isfinite(each)), default=0.0)
    lanes = streams(current.streams, rate, seen.round_trip) if rate and not fixed.streams else current.streams
    chunk = fixed.chunk_kib or _chunk(current.chunk_kib, lanes, seen)
    if not seen.interval:
        return _changed(current, streams=lanes, chunk_kib=chunk)
    modes, turn = rules.modes, float(fixed.period or 1)
    loads = [mode.load(seen) for mode in modes]
    at = modes.index(Mode(current.codec, current.fetch))
    fits = [
        load / turn <= (mode.widen if n < at else mode.goal)
        for n, (mode, load) in enumerate(zip(modes, loads, strict=True))
    ]
    best = fits.index(True) if True in fits else len(modes) - 1
    if not seen.known:
        best = max(best, at)  # an unknown rate is no reason for a wider mode
    short = loads[at] * seen.interval < SHORT * seen.transfers
    if short and BITS[modes[best].push] < BITS[current.codec]:
        best = at
    wanted = max(turn, loads[best] / USED if loads[best] > USED else 1.0)
    period = _period(current.period, wanted, turn)
    chosen = modes[best]
    return _changed(
        current, codec=chosen.push, fetch=chosen.fetch, period=period, streams=lanes, chunk_kib=chunk
    )


def _changed(current: Communication, **fields: Any) -> Communication:
    """`current` with these fields, and itself if it has them."""
    same = all(getattr(current, name) == value for name, value in fields.items())
    return current if same else replace(current, **fields)


def streams(current: int, rate: float, round_trip: float) -> int:
    """Streams for the bytes that are on the way during a round trip; fewer than now only if half are enough.

    Args:
        rate: bits per second.
        round_trip: seconds.
    """
    wanted = min(max(_lanes(AHEAD * rate, round_trip), 1), MOST_CHOSEN)
    return current if current / 2 < wanted <= current else wanted


def _lanes(rate: float, round_trip: float) -> int:
    return math.ceil(rate / 8 * round_trip / STREAM_BYTES)


def _chunk(current: int, streams: int, seen: Observed) -> int:
    """KiB of a chunk, a power of two. It stays as it is while it is within a factor of two."""
    rate = min(seen.up, seen.down)
    if not math.isfinite(rate):
        return current
    wanted = min(max(rate / 8 / streams * CHUNK_SECONDS / 1024, LEAST_CHUNK), MOST_CHUNK)
    return current if current / 2 <= wanted <= 2 * current else int(2 ** round(math.log2(wanted)))


def _period(current: float, wanted: float, least: float) -> float:
    """The current period if the wanted one is near. `least` replaces it at once, because nothing is held up."""
    near = current / STEADY < wanted < current * STEADY
    return current if near and wanted > least else round(wanted, 2)


def _reason(mode: Mode, seen: Observed, rules: Rules) -> str:
    """The numbers behind the choice, in less than 256 characters."""
    rates = " and ".join(
        f"{rate * 1e-9:.3g} Gbit/s {name}" if math.isfinite(rate) else f"an unknown rate {name}"
        for name, rate in (("up", seen.up), ("down", seen.down))
    )
    text = f"{_named(mode)} takes {mode.load(seen):.2f} of an interval of {seen.interval:.3g} s at {rates}"
    wider = [each for each in rules.modes[: rules.modes.index(mode)] if each.load(seen) > each.goal]
    return f"{text}; {_named(wider[-1])} would take {wider[-1].load(seen):.2f}" if wider else text


def _named(mode: Mode) -> str:
    return mode.push if mode.push == mode.fetch else f"{mode.push}, with versions in {mode.fetch},"


def _advice(mode: Mode, seen: Observed, rules: Rules) -> str:
    """What to set if a fixed setting does not fit the link; else empty."""
    fixed, free = rules.fixed, rules.allowed(None)
    turn = fixed.period or 1
    if mode.load(seen) <= USED * turn:
        return ""
    lanes = _more_streams(mode, seen, fixed)
    if lanes:
        return f"communication.streams: {lanes}, or leave it out"
    codec = "communication.codec" if fixed.codec else "outer.codec" if rules.exact and len(free) > 1 else ""
    if not (codec or fixed.period):
        return ""
    fitting = next((mode for mode in free if mode.load(seen) <= GOAL * turn), None)
    if codec and fitting is not None:
        return f"{codec}: {fitting.push} takes {fitting.load(seen) / turn:.2f} of {turn} interval(s)"
    narrowest = free[-1]
    period = math.ceil(narrowest.load(seen) / GOAL)
    rest = "" if rules.exact else ", or leave both out"
    return f"communication.period: {period} with {codec or 'codec'} {narrowest.push}{rest}"


def _more_streams(mode: Mode, seen: Observed, fixed: CommunicationSpec) -> int:
    """Streams with which the mode fits, if the fixed number limits the slower direction; else 0."""
    bits, rate = mode.slower(seen)
    if not fixed.streams or _lanes(AHEAD * rate, seen.round_trip) <= fixed.streams:
        return 0
    need = seen.elements * bits / (GOAL * (fixed.period or 1) * seen.interval)
    lanes = _lanes(need, seen.round_trip)
    return lanes if fixed.streams < lanes <= MOST_STREAMS else 0

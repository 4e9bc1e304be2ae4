"""Looks for a better M, codec, H and K for a run: one knob after another, with a few values each.

The chips and the total batch of all units stay the same. M comes first, because only M has a large effect on goodput.
Then come codec and H, which decide the traffic, then K. Each knob is tried with the earlier ones as chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from atoll_runtime.contract import Codec
from atoll_runtime.protocol.communication import carries
from atoll_runtime.simulate.planner.estimate import Expectation, expect
from atoll_runtime.simulate.planner.needs import CHIPS
from atoll_runtime.simulate.planner.run import Assumptions, Run

Knob = Literal["as it is", "M", "codec", "H", "K"]
SPLITS = ((1, 4), (1, 2), (2, 1), (4, 1), (8, 1))
"""New units for each present unit, as numerator and denominator."""
INTERVALS = (24, 48, 96)
"""H: from that of the main experiments to near Streaming DiLoCo's 100, up to which no quality loss is published."""
MOST_QUORUM = 1024
"""The largest K (`contract.QuorumSpec`)."""
TOLERANCE = 0.5
"""Points. A smaller gain does not change what the user wrote, because simulation and constants are not more precise."""
STATE_BYTES = 16
"""Bytes of a parameter in a unit's memory: weight, gradient and two moments, float32, without activations."""

DOUBLING = 0.9
"""M=8 → M=16: 55.4 → 54.5 with RDA. The paper recovers the loss with a larger token budget. Up to 8 nothing is lost."""
FREE_UNITS = 8
ABLATED_UNITS = 16
"""Beyond this number the same loss for each further doubling is an extrapolation."""
ALONE = 3.0
"""K=M → K=1 without grace, on units of unequal speed: 54.4 → 51.4. With the adaptive grace K=1 is 55.3."""
CODEC = {"float32": 0.0, "bf16": 0.0, "int8": 0.1, "int4": 0.1}
"""bf16 → int4: 55.4 → 55.3; int8 loses no more."""


def points_lost(run: Run) -> float:
    """Returns the points of the text average that are lost, by the published ablations (arXiv 2604.21428): 0 for the
    published setting, M=8, K=1 with grace, bf16. They are of 2B to 5B models. Between their points only the
    order is known.
    """
    units = DOUBLING * max(0.0, math.log2(run.units / FREE_UNITS))
    quorum = run.quorum
    waits = quorum.grace.fraction > 0 and quorum.grace.max_steps > 0  # for more than K units
    unsure = 0.0 if waits or run.units == 1 else (run.units - quorum.min) / (run.units - 1)
    return units + ALONE * unsure + CODEC[run.codec]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One set of knobs, and what to expect of it."""

    knob: Knob
    """The knob that was changed."""
    run: Run
    expected: Expectation
    points_lost: float
    """Of the text average, by the published ablations."""
    fits_link: bool
    refusal: str
    """Why it cannot be chosen; empty when it can."""
    best: bool = False
    reason: str = ""

    @property
    def score(self) -> float:
        """Points of goodput minus points of lost quality. To weigh them equally is a judgement; the rows show both."""
        return 100 * self.expected.goodput - self.points_lost


def choose(run: Run, assumed: Assumptions) -> tuple[Choice, ...]:
    """Returns the run as it is and every other set tried. Exactly one is the best, with the reason in words."""
    rows = [current := _judged("as it is", run, assumed)]
    for knob in ("M", "codec", "H", "K"):
        others = [_judged(knob, other, assumed) for other in _values(knob, current.run)]
        rows += others
        current = _better(current, others, for_link=knob in ("codec", "H"))
    reason = _reason(rows[0], current, assumed)
    return tuple(replace(row, best=True, reason=reason) if row is current else row for row in rows)


def _values(knob: Knob, run: Run) -> Iterator[Run]:
    """Yields the run with other values of one knob."""
    outer, K = run.outer, run.quorum.min
    if knob == "M":
        for numerator, denominator in SPLITS:
            pools = [pool.split(numerator, denominator) for pool in run.pools]
            split = replace(run, pools=tuple(pool for pool in pools if pool is not None))
            if len(split.pools) == len(pools):
                yield split.turned(quorum=min(MOST_QUORUM, math.ceil(K * split.units / run.units)))
    elif knob == "codec":
        for codec in get_args(Codec):
            if codec != outer.codec and carries(run.communication.codec or "int4", codec):
                yield run.turned(codec=codec)
    elif knob == "H":
        for H in INTERVALS:
            if outer.interval != H:
                yield run.turned(interval=H, fragments=min(H, run.pieces), overlap=min(outer.overlap, H))
    else:
        for quorum in sorted({1, math.ceil(run.units / 2), run.units} - {K}):
            if quorum <= MOST_QUORUM:
                yield run.turned(quorum=quorum)


def _judged(knob: Knob, run: Run, assumed: Assumptions) -> Choice:
    expected, link = expect(run, assumed), assumed.least_link(run)
    return Choice(
        knob=knob,
        run=run,
        expected=expected,
        points_lost=points_lost(run),
        fits_link=link is None or expected.link.gbps_link <= link,
        refusal=_refusal(run),
    )


def _refusal(run: Run) -> str:
    for pool in run.pools:
        if STATE_BYTES * run.parameters > pool.chips * CHIPS[pool.generation].memory:
            return f"{pool.chips} chips of {pool.generation} cannot hold the model's state"
    return ""


def _better(current: Choice, others: Sequence[Choice], *, for_link: bool) -> Choice:
    """Returns the choice to continue with, among the possible ones. With `for_link`, only those that fit the link
    count; if none fits, the one that needs the least of it."""
    able = [choice for choice in (current, *others) if not choice.refusal] or [current]
    if for_link:
        fitting = [choice for choice in able if choice.fits_link]
        able = fitting or [min(able, key=lambda choice: choice.expected.link.gbps_link)]
    top = max(choice.score for choice in able)
    return next(choice for choice in able if choice.score >= top - TOLERANCE)


def _reason(before: Choice, after: Choice, assumed: Assumptions) -> str:
    """Returns why `after` is chosen over the run as it is, with the figures that decided."""
    old = before.run.knobs
    turned = ", ".join(
        f"{knob}={value}" for knob, value in after.run.knobs.items() if knob != "tau" and value != old[knob]
    )
    lines = [choice.expected.link.gbps_link for choice in (before, after)]
    if turned:
        parts = [
            f"{turned}: goodput {100 * before.expected.goodput:.1f} → {100 * after.expected.goodput:.1f} %",
            f"{lines[0]:.3g} → {lines[1]:.3g} Gbit/s of a unit's link",
        ]
    else:
        parts = [f"as it is: nothing tried gains {TOLERANCE:g} points of goodput less lost quality"]
    if after.points_lost:
        source = "the trend from M=8 to 16" if after.run.units > ABLATED_UNITS else "the published ablations"
        parts.append(f"{after.points_lost:.1f} points of quality are lost by {source}")
    if (link := assumed.least_link(after.run)) is not None:
        parts.append(
            f"{'within' if after.fits_link else 'still more than'} the {link:g} Gbit/s that there are"
        )
    if after.refusal:
        parts.append(after.refusal)
    return "; ".join(parts)

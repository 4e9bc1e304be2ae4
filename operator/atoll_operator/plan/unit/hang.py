"""A hang: the pods run, and no step ends.

It is judged by the steps that the syncer reports. While the syncer does not answer nothing is judged, and the time
starts again when it is back.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll_operator.api.sections import RecoverySpec
from atoll_runtime.contract import UnitReport


@dataclass(frozen=True, slots=True)
class Pace:
    """The last observed progress of one unit."""

    incarnation: int
    step: int
    stepped: bool
    """Whether this incarnation has ended a step. The first step includes compilation."""
    since: float
    """Unix seconds at which this operator saw it first."""


def follow(
    known: Pace | None, report: UnitReport | None, answering_since: float | None, now: float
) -> Pace | None:
    """The pace after another report; None while the syncer does not answer or does not know the unit.

    A step seen before the syncer answered, or later than now, counts as seen now: the syncer was away, or the clock was
    changed.
    """
    if report is None or answering_since is None:
        return None
    pace = Pace(report.incarnation, report.step, report.loss is not None, now)
    if known is None or not answering_since <= known.since <= now:
        return pace
    same = (known.incarnation, known.step, known.stepped) == (pace.incarnation, pace.step, pace.stepped)
    return known if same else pace


def stepped(pace: Pace | None, incarnation: int) -> float | None:
    """Unix seconds when the last step of this incarnation was seen to end."""
    return pace.since if pace is not None and pace.stepped and pace.incarnation == incarnation else None


def deadline(pace: Pace | None, incarnation: int, recovery: RecoverySpec) -> float | None:
    """Unix seconds at which this incarnation counts as hanging unless a step ends before; None if it is not judged.

    Until the first step it has `startupSeconds`, as before its hosts are connected: seeding and compilation.
    """
    if pace is None or pace.incarnation != incarnation or recovery.hang_seconds == 0:
        return None
    return pace.since + (
        recovery.hang_seconds if pace.stepped else max(recovery.hang_seconds, recovery.startup_seconds)
    )

"""Learners that stop as a whole for any interruption: rigid data-parallel, and a unit of Atoll's."""

from __future__ import annotations

from math import inf

from atoll_runtime.simulate.fleet.setting import Heal, Recovery
from atoll_runtime.simulate.fleet.timeline import Interruptions, Timeline


def rigid(slices: int, recovery: Recovery, interruptions: Interruptions, seconds: float) -> Timeline:
    """Everything stops until the hardware is back, and for a pause after that.

    What is interrupted meanwhile is replaced with it: the published row is far above what one wait after the
    other would leave.
    """
    line, now = Timeline(), 0.0
    for hit in (*interruptions.times, inf):
        if hit < now:
            continue
        stop = min(hit + recovery.notice, seconds)
        line.step(now, stop, slices)
        line.interruptions += hit < inf
        hardware = min(max(hit + recovery.repair, stop), seconds)
        now = min(hardware + recovery.pause, seconds)
        line.idle["waiting"] += slices * (hardware - stop)
        line.idle["restart"] += slices * (now - hardware)
        if now == seconds:
            break
    return line


def unit(
    slices: int, recovery: Recovery, heal: Heal, interruptions: Interruptions, seconds: float
) -> Timeline:
    """The gang is re-created and seeded; an interruption before the heal has ended begins it anew."""
    line, now = Timeline(), 0.0
    hits = iter((*interruptions.times, inf))
    hit = next(hits)
    while now < seconds:  # each round passes an interruption or reaches the end
        stop = min(hit + recovery.notice, seconds)
        line.step(now, stop, slices, min(heal.unmerged, stop - now) if hit < inf else 0.0)
        now = hardware = stop
        while hit <= now < seconds:
            line.interruptions += 1
            hardware = max(hardware, hit + recovery.repair, now)
            hit = next(hits)
            now = _heal(line, slices, heal, now, hardware, min(hit, seconds))
    return line


def _heal(line: Timeline, slices: int, heal: Heal, start: float, hardware: float, limit: float) -> float:
    """Charges one attempt to heal, up to `limit`; when it ended."""
    created = start + heal.detect + heal.schedule
    bound = max(created, hardware)
    started = bound + heal.pull + heal.start
    phases = (
        ("restart", created),
        ("waiting", bound),
        ("restart", started),
        ("seeding", started + heal.restore + heal.catch_up),
    )
    now, limit = start, max(limit, start)
    for cause, end in phases:
        until = min(end, limit)
        line.idle[cause] += slices * (until - now)
        now = until
    return now

"""Learners that stop as a whole for any interruption: rigid data-parallel, and a unit of Atoll's."""

from __future__ import annotations

from math import inf

from atoll_runtime.simulate.fleet.setting import Heal, Recovery
from atoll_runtime.simulate.fleet.timeline import Interruptions, Pool, Timeline


def rigid(
    slices: int, spares: int, recovery: Recovery, interruptions: Interruptions, seconds: float
) -> Timeline:
    """Everything stops until the hardware is back, and for a pause after that.

    What is interrupted meanwhile is replaced with it: the published row is far above what one wait after the
    other would leave.
    """
    line, pool = Timeline(), Pool(spares, 0.0)
    now, work = 0.0, 0.0
    for hit in (*interruptions.times, inf):
        if hit < now:
            continue
        stop = min(hit + recovery.notice, seconds)
        work += stop - now
        lost = work % recovery.checkpoint if recovery.checkpoint and hit < inf else 0.0
        work -= lost
        line.step(now, stop, slices, lost)
        pool.advance(line, now, stop)
        line.interruptions += hit < inf
        hardware = min(_hardware(pool, recovery, hit, stop), seconds)
        now = min(hardware + recovery.pause + (recovery.in_place or 0.0), seconds)
        line.idle["waiting"] += slices * (hardware - stop)
        line.idle["restart"] += slices * (now - hardware)
        pool.advance(line, stop, now)
        if now == seconds:
            break
    return line


def unit(
    slices: int, spares: int, recovery: Recovery, heal: Heal, interruptions: Interruptions, seconds: float
) -> Timeline:
    """The gang is re-created and seeded; an interruption before the heal has ended begins it anew."""
    line, pool = Timeline(), Pool(spares, 0.0)
    hits = iter((*interruptions.times, inf))
    hit, now = next(hits), 0.0
    while now < seconds:  # each round passes an interruption or reaches the end
        stop = min(hit + recovery.notice, seconds)
        line.step(now, stop, slices, min(heal.unmerged, stop - now) if hit < inf else 0.0)
        pool.advance(line, now, stop)
        now = hardware = stop
        while hit <= now < seconds:
            line.interruptions += 1
            hardware = max(hardware, _hardware(pool, recovery, hit, now))
            hit = next(hits)
            end = _heal(line, slices, heal, recovery, now, hardware, min(hit, seconds))
            pool.advance(line, now, end)
            now = end
    return line


def _heal(
    line: Timeline, slices: int, heal: Heal, recovery: Recovery, start: float, hardware: float, limit: float
) -> float:
    """Charges one attempt to heal, up to `limit`; when it ended."""
    created = start + heal.detect
    if recovery.in_place is None:
        created += heal.schedule
    bound = max(created, hardware)
    started = bound + (heal.start if recovery.in_place is None else recovery.in_place)
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


def _hardware(pool: Pool, recovery: Recovery, hit: float, now: float) -> float:
    """When the slices are complete again; a slice that a spare replaces is repaired behind the scenes."""
    if recovery.in_place is not None:
        return now
    ready = max(hit + recovery.repair, now)
    if pool.take(1):
        pool.away.append(ready)
        return now
    return ready

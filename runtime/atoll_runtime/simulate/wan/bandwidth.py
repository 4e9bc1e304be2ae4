"""Gbit/s that a site needs for a compute utilisation, and the utilisation that a link allows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from atoll_runtime.simulate.wan.streams import load
from atoll_runtime.simulate.wan.timeline import compute_share
from atoll_runtime.simulate.wan.traffic import GIGA, Method, Traffic, rounds, volume

PRECISION = 1e-7
"""Relative; of every search."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Gbit/s of one site's link, in one direction; of both together where the link is shared."""

    gbps_peak: float
    """While something is on its way. Decoupled: of one fragment's stream, so less than `gbps_link` where several
    are on their way at once (τ > H/P)."""
    gbps_mean: float
    """Over the whole time of training."""
    gbps_link: float
    """What the link must carry."""
    gbps_both_directions: float
    """`gbps_peak`, sending and receiving."""


def need(method: Method, traffic: Traffic, utilization: float = 0.95) -> Need:
    """The least bandwidth for a share of the time, above 0 and below 1, in which the site computes.

    Decoupled learners do not wait: for them it is the bandwidth that keeps the schedule.

    Raises:
        ValueError: a latency or a number that makes it impossible.
    """
    if not 0 < utilization < 1:
        raise ValueError(f"utilization: {utilization} must be above 0 and below 1")
    if method is Method.DECOUPLED:
        found = load(traffic)
        peak, mean, link = (rate / GIGA for rate in (found.stream, found.mean, found.link))
    else:
        peak, mean = _to_wait_so_long(method, traffic, utilization)
        link = peak
    both = peak if traffic.shared else 2 * peak
    return Need(gbps_peak=peak, gbps_mean=mean, gbps_link=link, gbps_both_directions=both)


def _to_wait_so_long(method: Method, traffic: Traffic, target: float) -> tuple[float, float]:
    schedule, bits = rounds(method, traffic), volume(method, traffic)
    if not bits:
        return 0.0, 0.0
    best = compute_share(schedule, traffic.step_seconds, 0.0, traffic.latency)
    if best < target:
        raise ValueError(
            f"latency: {traffic.latency:g} s alone leaves a utilization of {best:.3f}, not {target:g}"
        )
    # A link can do no less than carry everything in the time there is.
    mean = bits / (schedule.interval * traffic.step_seconds / target) / GIGA
    return least(lambda gbps: sustains(method, traffic, gbps, target), mean), mean


def utilization(method: Method, traffic: Traffic, gbps: float) -> float:
    """Share of the time in which a site computes, 0…1, on a link of so many Gbit/s in each direction.

    Raises:
        ValueError: no bandwidth, or a schedule that does not fit.
    """
    if not gbps > 0:
        raise ValueError(f"gbps: {gbps} must be above 0")
    schedule = rounds(method, traffic)
    if method is Method.DECOUPLED:
        return 1.0
    transfer = volume(method, traffic) / schedule.layers / (gbps * GIGA)
    if transfer == 0:
        return 1.0
    return compute_share(schedule, traffic.step_seconds, transfer, traffic.latency)


def sustains(method: Method, traffic: Traffic, gbps: float, target: float) -> bool:
    """Whether the site computes that share of the time; decoupled: whether every fragment is there in time."""
    if method is Method.DECOUPLED:
        return load(traffic).link <= gbps * GIGA
    return utilization(method, traffic, gbps) >= target


def least(enough: Callable[[float], bool], start: float) -> float:
    """The smallest value, from `start` up, that is enough, to `PRECISION`.

    Raises:
        ValueError: nothing up to 2^60 times `start` is.
    """
    if enough(start):
        return start
    high = start
    for _ in range(60):
        low, high = high, 2 * high
        if enough(high):
            break
    else:
        raise ValueError(f"nothing from {start:g} to {high:g} is enough")
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high

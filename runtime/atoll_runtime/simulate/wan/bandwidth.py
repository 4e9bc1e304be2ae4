"""Gbit/s that a site needs for a compute utilisation, and the utilisation that a link allows."""

from __future__ import annotations

import math

from atoll_runtime.simulate.wan.streams import streaming_need
from atoll_runtime.simulate.wan.timeline import compute_share
from atoll_runtime.simulate.wan.traffic import GIGA, Method, Need, Traffic, rounds, volume

PRECISION = 1e-7
"""Relative; of the search."""


def need(method: Method, traffic: Traffic, share: float = 0.95) -> Need:
    """The least bandwidth for a share of the time, above 0 and below 1, in which the site computes.

    Decoupled learners do not wait: for them it is the bandwidth that keeps the schedule.

    Raises:
        ValueError: a schedule that does not fit; the message names the field.
    """
    if method is Method.DECOUPLED:
        return streaming_need(traffic)
    # A link can do no less than carry everything in the time there is.
    seconds = rounds(method, traffic).interval * traffic.step_seconds / share
    mean = volume(method, traffic) / seconds / GIGA
    link = _least(method, traffic, share, mean)
    return Need(gbps_peak=link, gbps_mean=mean, gbps_link=link, gbps_both_directions=2 * link)


def utilization(method: Method, traffic: Traffic, gbps: float) -> float:
    """Share of the time in which a site computes, 0…1, on a link of so many Gbit/s in each direction."""
    if method is Method.DECOUPLED:
        return 1.0
    schedule = rounds(method, traffic)
    transfer = volume(method, traffic) / schedule.layers / (gbps * GIGA)
    return compute_share(schedule, traffic.step_seconds, transfer)


def _least(method: Method, traffic: Traffic, share: float, low: float) -> float:
    """The smallest bandwidth from `low` up that is enough, to `PRECISION`."""
    high = low
    while utilization(method, traffic, high) < share:  # ends: an unlimited link leaves no waiting
        low, high = high, 2 * high
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if utilization(method, traffic, middle) >= share else (middle, high)
    return high

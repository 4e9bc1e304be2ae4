"""Gbit/s that a site needs for a compute utilisation, and the utilisation that a link allows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from atoll_runtime.simulate.wan.traffic import GIGA, Method, Need, Rounds, Traffic, rounds, volume

FORWARD = 1 / 3
"""The forward pass's share of a step: 2 of 6 FLOPs per parameter and token (Kaplan et al., arXiv 2001.08361)."""

WARM = 2
"""Intervals before the measurement begins. In them the queue of the link fills."""
MEASURED = 2
"""Intervals measured."""


def compute_share(rounds: Rounds, step: float, transfer: float) -> float:
    """Returns the share of time in which a site computes, 0…1, with a method that waits for its exchanges.

    The forward pass takes the layers in order, the backward pass in reverse order. A layer that is exchanged joins
    the queue of the link when its backward pass has ended. The forward pass of a later step waits at that layer until
    it has arrived. So a part of every exchange is hidden (Streaming DiLoCo, arXiv 2501.18512, section on compute
    utilisation, and its authors' simulator, in which reductions overlap the backward pass).

    Args:
        step: seconds of one step.
        transfer: seconds that the link needs for one layer.
    """
    forward, backward = FORWARD * step / rounds.layers, (1 - FORWARD) * step / rounds.layers
    start, end = WARM * rounds.interval, (WARM + MEASURED) * rounds.interval
    leaving = {
        cycle * rounds.interval + rounds.phase(p): rounds.content(p)
        for cycle in range(WARM + MEASURED)
        for p in range(rounds.fragments)
    }
    arrivals: dict[int, dict[int, float]] = {}
    clock = link_free = begun = 0.0
    for number in range(end):
        if number == start:
            begun = clock
        for layer, arrival in sorted(arrivals.pop(number, {}).items()):
            clock = max(clock, arrival - layer * forward)
        backward_from = clock + FORWARD * step
        for layer in reversed(leaving.get(number, range(0))):
            ready = backward_from + (rounds.layers - layer) * backward
            link_free = max(link_free, ready) + transfer
            arrivals.setdefault(number + 1 + rounds.overlap, {})[layer] = link_free
        clock += step
    measured = MEASURED * rounds.interval * step / (clock - begun)
    # With a long overlap, a link that is slightly too slow falls behind for many intervals before training waits.
    return min(measured, rounds.interval * step / (rounds.layers * transfer))


def streaming_need(traffic: Traffic) -> Need:
    """Returns what the schedule needs. It does not depend on the learners' utilisation, because they do not wait.

    Fragments that are in flight at the same time share the link. Any sequence of consecutive fragments must pass
    between the step after which the first is sent and the step at which the last is used. The need of a sequence
    longer than an interval lies between the need of the shorter ones and the mean.
    """
    schedule = rounds(Method.DECOUPLED, traffic)
    sizes = traffic.sizes or (1 / schedule.fragments,) * schedule.fragments
    model = volume(Method.DECOUPLED, traffic) / traffic.step_seconds / GIGA
    peak, mean = max(sizes) / schedule.overlap * model, model / schedule.interval
    link = max(mean, _densest(schedule, sizes) * model)
    return Need(gbps_peak=peak, gbps_mean=mean, gbps_link=link, gbps_both_directions=2 * peak)


def _densest(schedule: Rounds, sizes: Sequence[float]) -> float:
    """Returns the highest rate that any sequence of up to P fragments needs, in models per step."""
    count = schedule.fragments
    phases = np.array([schedule.phase(p) for p in range(count)])
    steps = np.concatenate([phases, phases + schedule.interval])
    sums = np.concatenate([[0.0], np.cumsum([*sizes, *sizes])])
    return max(
        float(
            np.max(
                (sums[first + 1 : first + count + 1] - sums[first])
                / (steps[first : first + count] - steps[first] + schedule.overlap)
            )
        )
        for first in range(count)
    )


PRECISION = 1e-7
"""Relative precision of the search."""


def need(method: Method, traffic: Traffic, share: float = 0.95) -> Need:
    """Returns the least bandwidth with which a site computes for `share` of the time, above 0 and below 1.

    Decoupled learners do not wait. For them it is the bandwidth that keeps the schedule.
    """
    if method is Method.DECOUPLED:
        return streaming_need(traffic)
    # The link must at least carry everything in the time available.
    seconds = rounds(method, traffic).interval * traffic.step_seconds / share
    mean = volume(method, traffic) / seconds / GIGA
    link = _least(method, traffic, share, mean)
    return Need(gbps_peak=link, gbps_mean=mean, gbps_link=link, gbps_both_directions=2 * link)


def utilization(method: Method, traffic: Traffic, gbps: float) -> float:
    """Returns the share of time in which a site computes, 0…1, on a link of `gbps` Gbit/s in each direction."""
    if method is Method.DECOUPLED:
        return 1.0
    schedule = rounds(method, traffic)
    transfer = volume(method, traffic) / schedule.layers / (gbps * GIGA)
    return compute_share(schedule, traffic.step_seconds, transfer)


def _least(method: Method, traffic: Traffic, share: float, low: float) -> float:
    """Returns the smallest sufficient bandwidth from `low` up, to `PRECISION`."""
    high = low
    while utilization(method, traffic, high) < share:  # ends, because nothing waits on an unlimited link
        low, high = high, 2 * high
    while high / low > 1 + PRECISION:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if utilization(method, traffic, middle) >= share else (middle, high)
    return high

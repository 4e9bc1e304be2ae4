"""Fragments to and from a syncer, each τ steps on its way: what the link must carry so that none is late."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll_runtime.simulate.wan.traffic import GIGA, Method, Need, Rounds, Traffic, rounds, volume


def streaming_need(traffic: Traffic) -> Need:
    """Of the schedule, whatever the learners' utilisation: they do not wait.

    Fragments that are on their way at the same time share the link: any run of them must be through between
    the step after which the first one leaves and the one at which the last is used. Runs longer than an interval lie
    between these and the mean.
    """
    schedule = rounds(Method.DECOUPLED, traffic)
    sizes = traffic.sizes or (1 / schedule.fragments,) * schedule.fragments
    model = volume(Method.DECOUPLED, traffic) / traffic.step_seconds / GIGA
    peak, mean = max(sizes) / schedule.overlap * model, model / schedule.interval
    link = max(mean, _densest(schedule, sizes) * model)
    return Need(gbps_peak=peak, gbps_mean=mean, gbps_link=link, gbps_both_directions=2 * peak)


def _densest(schedule: Rounds, sizes: Sequence[float]) -> float:
    """The most that must pass in any run of up to P fragments, in models per step."""
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

"""Fragments to and from a syncer, each τ steps on its way: what the link must carry so that none is late."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll_runtime.simulate.wan.traffic import Method, Rounds, Traffic, rounds, volume


@dataclass(frozen=True)
class Load:
    """Bits a second of one site's link, in one direction."""

    stream: float
    """Of the largest fragment alone, spread over its τ steps: N·b/(P·τ·ξ_step) where all are equal."""
    mean: float
    """Over time, at the schedule's pace: N·b/(H·ξ_step)."""
    link: float
    """The least rate at which a first-in, first-out link has every fragment there in time."""


def load(traffic: Traffic) -> Load:
    """Of the schedule, whatever the learners' utilisation: they do not wait.

    Fragments that are on their way at the same time share the link: any run of them must be through between
    the step after which the first one leaves and the one at which the last is used. Runs longer than an interval lie
    between these and the mean.
    """
    schedule = rounds(Method.DECOUPLED, traffic)
    sizes = traffic.sizes or (1 / schedule.fragments,) * schedule.fragments
    a_second = volume(Method.DECOUPLED, traffic) / traffic.step_seconds
    mean = a_second / schedule.interval
    return Load(
        stream=max(sizes) / schedule.overlap * a_second,
        mean=mean,
        link=max(mean, _densest(schedule, sizes) * a_second),
    )


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

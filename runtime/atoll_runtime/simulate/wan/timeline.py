"""A time-line of layers and transfers: methods that wait for what they exchange.

Layers run forward one after the other, then backward in the other order. A layer that is exchanged joins the
queue of the link as soon as its backward pass has ended; the forward pass of a later step stops at that layer
until it is there. This is what hides a part of every exchange (Streaming DiLoCo, arXiv 2501.18512, section on
compute utilisation, and its authors' simulator: reductions overlap the backward pass).
"""

from __future__ import annotations

from atoll_runtime.simulate.wan.traffic import Rounds

FORWARD = 1 / 3
"""Of a step: 2 of the 6 FLOPs of a parameter and token (Kaplan et al., arXiv 2001.08361)."""

WARM = 2
"""Intervals before the measurement, in which the queue of the link fills."""
MEASURED = 2
"""Intervals measured."""


def compute_share(rounds: Rounds, step: float, transfer: float) -> float:
    """Share of the time in which a site computes, 0…1.

    Args:
        step: seconds of one step.
        transfer: seconds that the link needs for one layer.
    """
    forward, backward = FORWARD * step / rounds.layers, (1 - FORWARD) * step / rounds.layers
    start, end = WARM * rounds.interval, (WARM + MEASURED) * rounds.interval
    leaving = {
        cycle * rounds.interval + rounds.phase(p): rounds.content(p)
        for cycle in range(WARM + MEASURED + 1)
        for p in range(rounds.fragments)
    }
    used = {number + 1 + rounds.overlap for number in leaving}
    arrivals: dict[int, dict[int, float]] = {}
    clock = link_free = begun = 0.0
    done = 0
    for number in sorted(used | leaving.keys()):  # in the other steps nothing leaves and nothing is awaited
        clock += (number - done) * step
        if number == start:
            begun = clock
        if number == end:
            break
        for layer, arrival in sorted(arrivals.pop(number, {}).items()):
            clock = max(clock, arrival - layer * forward)
        backward_from = clock + FORWARD * step
        for layer in reversed(leaving.get(number, range(0))):
            ready = backward_from + (rounds.layers - layer) * backward
            link_free = max(link_free, ready) + transfer
            arrivals.setdefault(number + 1 + rounds.overlap, {})[layer] = link_free
        clock += step
        done = number + 1
    measured = MEASURED * rounds.interval * step / (clock - begun)
    # Under a long overlap a link that is a little too thin falls behind for many intervals before training waits.
    return min(measured, rounds.interval * step / (rounds.layers * transfer))

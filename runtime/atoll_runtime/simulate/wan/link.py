"""The other direction: what a given link between sites allows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll_runtime.simulate.wan.bandwidth import PRECISION, least, sustains, utilization
from atoll_runtime.simulate.wan.streams import load
from atoll_runtime.simulate.wan.traffic import GIGA, Method, Traffic, rounds, volume

SYNCHRONOUS_BITS = 16
"""Gradients of data-parallel training and outer gradients of DiLoCo as published: bfloat16."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Training over a link."""

    utilization: float
    """Share of the time in which a site computes."""
    hidden_step_seconds: float
    """The shortest step at which the method still reaches the target; decoupled: keeps its schedule."""
    interval_reached: float
    """Steps between two exchanges of a fragment: more than H where the link cannot carry a decoupled schedule."""
    speedup_data_parallel: float
    """Steps in the time that data-parallel training over the same link needs for one."""
    speedup_diloco: float
    """The same against DiLoCo."""


def outlook(method: Method, traffic: Traffic, gbps: float, target: float = 0.95) -> Outlook:
    """What `method` makes of a link of so many Gbit/s.

    Raises:
        ValueError: a value that cannot be used, or a latency that makes the target impossible.
    """
    share = utilization(method, traffic, gbps)
    reached = float(rounds(method, traffic).interval)
    if method is Method.DECOUPLED:
        reached *= max(1.0, load(traffic).mean / (gbps * GIGA))
    synchronous = replace(
        traffic, bits=SYNCHRONOUS_BITS, interval=None, fragments=None, overlap=None, sizes=None
    )
    return Outlook(
        utilization=share,
        hidden_step_seconds=hidden_step(method, traffic, gbps, target),
        interval_reached=reached,
        speedup_data_parallel=share / utilization(Method.DATA_PARALLEL, synchronous, gbps),
        speedup_diloco=share / utilization(Method.DILOCO, synchronous, gbps),
    )


def hidden_step(method: Method, traffic: Traffic, gbps: float, target: float = 0.95) -> float:
    """Seconds of the shortest step at which the link does not hold training up; 0 where nothing is exchanged."""
    bits = volume(method, traffic)
    if not bits:
        return 0.0
    schedule = rounds(method, traffic)
    carried = bits / (schedule.interval * gbps * GIGA)
    if method is Method.DECOUPLED:
        start = max(carried, traffic.latency / schedule.overlap * (1 + PRECISION))
    else:
        start = carried * target
    return least(
        lambda seconds: sustains(method, replace(traffic, step_seconds=seconds), gbps, target), start
    )

"""The traffic between sites: how much, how often, and when it must have arrived."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from atoll_runtime.protocol.fragments import Layout
from atoll_runtime.protocol.schedule import offset

GIGA = 1e9
LAYERS_OF_1B = 24
"""Layers of the published 1B model. N = 12·L·width² (Kaplan) at a constant width/L makes L grow with N^(1/3).
That gives 52 at 10B and 111 at 100B; the published models have 48 and 108."""

LAYERS_PER_FRAGMENT = 3
"""Streaming DiLoCo (arXiv 2501.18512)."""


class Method(StrEnum):
    """How the sites keep one model."""

    DATA_PARALLEL = "data-parallel"
    """Gradients are reduced at every step."""
    DILOCO = "diloco"
    """Outer gradients of the whole model are exchanged once in H steps; training waits."""
    STREAMING = "streaming"
    """One fragment at a time is exchanged; training waits for it."""
    STREAMING_OVERLAP = "streaming-overlap"
    """One fragment at a time is exchanged and used τ steps later; training waits only for a late one."""
    DECOUPLED = "decoupled"
    """One fragment at a time goes to and from a syncer; training never waits."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """A model trained at several sites. None stands for the value with which the method was published."""

    params: float
    """N."""
    step_seconds: float
    """ξ_step: an inner step without waiting."""
    bits: float = 16
    """b: bits of a parameter on the wire."""
    sites: int = 8
    """M, at least 2."""
    interval: int | None = None
    """H: steps between two exchanges of the same fragment."""
    fragments: int | None = None
    """P, at most H."""
    overlap: int | None = None
    """τ: steps after which a fragment is used, from 1 to H."""
    layers: int | None = None
    """None: computed from N."""
    sizes: tuple[float, ...] | None = None
    """Each fragment's share of the model, in the order of the schedule (`shares`). None: equal shares."""


@dataclass(frozen=True, kw_only=True)
class Need:
    """Gbit/s of one site's link, in one direction."""

    gbps_peak: float
    """While something is in flight. Decoupled: the rate of the largest fragment's stream, N·b/(P·τ·ξ_step) where all
    are equal. It is less than `gbps_link` where several streams are in flight at once (τ > H/P)."""
    gbps_mean: float
    """Mean over the whole training. Decoupled: N·b/(H·ξ_step)."""
    gbps_link: float
    """What the link must carry. Decoupled: the least rate at which a first-in, first-out link delivers every fragment
    in time."""
    gbps_both_directions: float
    """`gbps_peak`, sending and receiving."""


@dataclass(frozen=True)
class Rounds:
    """The schedule of a method: which layers are sent after which step."""

    interval: int
    fragments: int
    overlap: int
    layers: int
    """A multiple of `fragments`."""

    def content(self, p: int) -> range:
        """Layers of fragment `p`: every P-th one, as published (strided)."""
        return range(p, self.layers, self.fragments)

    def phase(self, p: int) -> int:
        """The step within an interval after which fragment `p` is sent, by the product's own rule."""
        return offset(p, self.fragments, self.interval)


def rounds(method: Method, traffic: Traffic) -> Rounds:
    """The schedule, with the method's published values where `traffic` gives none. A method that exchanges the whole
    model has no fragments, and one that waits has no overlap."""
    layers = traffic.layers or LAYERS_PER_FRAGMENT * max(
        1, round(LAYERS_OF_1B / LAYERS_PER_FRAGMENT * (traffic.params / 1e9) ** (1 / 3))
    )
    if method is Method.DATA_PARALLEL:
        return Rounds(interval=1, fragments=1, overlap=0, layers=layers)
    if method is Method.DILOCO:
        return Rounds(interval=traffic.interval or 100, fragments=1, overlap=0, layers=layers)
    # Table 4 of arXiv 2501.18512 has H = 100 and, as its overlapped rows show, τ = 1.
    # The main experiments of Decoupled DiLoCo (arXiv 2604.21428) have P = H = 24 and τ = 2.
    interval, fragments, overlap = 100, max(1, layers // LAYERS_PER_FRAGMENT), 1
    if method is Method.DECOUPLED:
        interval, fragments, overlap = 24, 24, 2
    interval = traffic.interval or interval
    fragments = traffic.fragments or min(fragments, interval)
    overlap = 0 if method is Method.STREAMING else traffic.overlap or min(overlap, interval)
    return Rounds(interval, fragments, overlap, fragments * max(1, round(layers / fragments)))


def volume(method: Method, traffic: Traffic) -> float:
    """Bits that one site's link carries in one interval, in one direction.

    A ring all-reduce among M sites moves 2(M−1)/M of the model. With a syncer, a learner sends its outer gradients
    once and receives the fragments once.
    """
    ring = 1.0 if method is Method.DECOUPLED else 2 * (traffic.sites - 1) / traffic.sites
    return ring * traffic.params * traffic.bits


def shares(layout: Layout) -> tuple[float, ...]:
    """Returns each fragment's share of the model, over all shards."""
    width = layout.width
    return tuple(
        sum(fragment.size for fragment in layout.fragments[p::width]) / layout.size for p in range(width)
    )

"""The pods of a gang, told apart: those that serve or may, those that are made anew, and those that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from atoll_operator.api.learnerunit import LearnerUnitStatus
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit import remedy
from atoll_operator.plan.unit.remedy import Damage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Muster:
    """Of one gang."""

    hosts: int
    """That it has when it is whole."""
    per_slice: int
    """Hosts of each of its slices."""
    pods: Mapping[int, PodView]
    """Those that are there, in order of hosts; of two of a host the one that was made last."""
    outgoing: tuple[PodView, ...]
    """Those that are lost already, and are made anew."""
    placed: bool
    """All were made, so that those that are not there are lost."""
    departed: Mapping[int, PodView]
    """By host, the last that was seen of those that are gone."""

    @property
    def missing(self) -> tuple[int, ...]:
        """Hosts whose pods are not there, or outgoing."""
        return tuple(host for host in range(self.hosts) if host not in self.pods)

    @property
    def lost(self) -> tuple[int, ...]:
        """Hosts whose pods were made and are not there."""
        return self.missing if self.placed else ()

    def others(self, pods: Iterable[PodView]) -> tuple[PodView, ...]:
        """Of a unit's pods, those that are to go."""
        ours = {pod.uid for pod in self.pods.values()}
        return tuple(pod for pod in pods if pod.uid not in ours)

    def free(self, wanted: Mapping[int, T]) -> dict[int, T]:
        """Of these hosts, those whose lost pods have ended: until then they have the chips, and the name in DNS."""
        taken = {pod.host for pod in self.outgoing if not pod.ended}
        return {host: each for host, each in wanted.items() if host not in taken}

    @property
    def damage(self) -> Damage:
        """What a failure leaves of the gang. Empty where a slice is lost as a whole: that may be anywhere next, and the
        gang with it."""
        there = self.pods.values()
        kept = tuple(pod for pod in there if not remedy.leaves(pod))
        gone = (self.departed.get(host, PodView(name="", host=host)) for host in self.lost)
        lost = (*(pod for pod in there if remedy.leaves(pod)), *gone)
        slices = {pod.host // self.per_slice for pod in kept}
        return Damage(kept, lost) if self.placed and len(slices) == self.hosts // self.per_slice else Damage()


def muster(
    hosts: int,
    per_slice: int,
    pods: Iterable[PodView],
    departed: Mapping[int, PodView],
    status: LearnerUnitStatus,
    nodes: Mapping[str, NodeView],
    met: bool,
) -> Muster:
    """The gang of now.

    Args:
        hosts: that it is to have.
        per_slice: of them, in each slice.
        pods, departed: of the unit, those that are there and those that are gone.
        met: all hosts are connected to the syncer: what is lost from now on is lost anew.
    """
    placed = status.placed_gang == status.gang
    ours = sorted((pod for pod in pods if pod.gang == status.gang), key=lambda pod: (pod.host, pod.made_for))
    newest = {pod.host: pod for pod in ours}
    whole = placed or met
    lost = {host: pod for host, pod in newest.items() if not whole and _outgoing(pod, status, nodes)}
    left = {host // per_slice for host in newest if host not in lost}
    outgoing = {host: pod for host, pod in lost.items() if host // per_slice in left}
    serving = {host: pod for host, pod in newest.items() if host not in outgoing}
    gone = {host: pod for host, pod in departed.items() if pod.gang == status.gang}
    return Muster(hosts, per_slice, serving, tuple(outgoing.values()), placed, gone)


def _outgoing(pod: PodView, status: LearnerUnitStatus, nodes: Mapping[str, NodeView]) -> bool:
    """Lost before this incarnation was whole, and its host may have another."""
    lost = remedy.leaves(pod) and remedy.older(pod, status.incarnation)
    return lost and remedy.replaceable(pod, status.incarnation, nodes.get(pod.node))

"""Which missing pods of a unit may be created now, and in which node pool each goes.

A slice of several hosts is one node pool, alone in it. Pods that may be the first of their slice in a pool *hold* it:
no two slices hold one pool. The others follow their leader, host 0 of the slice, once it is bound: a plain selector for
its pool, which costs the scheduler next to nothing (docs/decisions/placement.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from atoll_operator.api.group import NODE_POOL
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.plan.clock import earliest, parse_time
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.topology import Slice
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE

RETURN_SECONDS = 15.0
"""How long a replaced pod may be unschedulable in its slice's pool before the unit leaves its place."""
AVOIDED = 100
"""Largest number of pools in a leader's affinity."""
HOSTS_SECONDS = 60.0
"""How long a slice waits in a pool that lacks hosts while another pool of its kind does not."""
SLICES_SECONDS = 600.0
"""How long a unit holds some of its slices while it waits for the others. An autoscaler creates a pool in minutes."""
GIVE_WAY_SECONDS = 30.0
"""How long a unit that gave its slices back creates no pods. The scheduler retries a waiting pod within 10 s, but tries
a new one at once."""


@dataclass(frozen=True, slots=True)
class PodPlacement:
    """Where one pod may run, beyond what its unit's spec asks of a node."""

    pool: str = ""
    """The node pool; empty: any."""
    holds: bool = False
    """No pod that holds for another slice may be in the same pool."""
    near: bool = False
    """In the pool of the slice's other pods, by affinity, because the pool's name is not known."""
    avoid: tuple[str, ...] = ()
    """Pools that lack hosts or still run an old pod of the unit; taken only if no other pool has room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementInput:
    """What is known when pods are placed."""

    spec: LearnerUnitSpec
    shape: Slice
    placement: int
    pods: tuple[PodView, ...]
    """Pods of the placement that stay."""
    outgoing: tuple[PodView, ...] = ()
    """Pods of the placement that are replaced."""
    stale: tuple[PodView, ...] = ()
    """All other pods of the unit. They have their hosts until they have ended."""
    nodes: Mapping[str, NodeView]
    sound_chips: Mapping[str, int] = field(default_factory=dict)
    """By node pool of the right kind, the chips of its sound nodes; empty if the operator may not see nodes."""
    at_once: bool = False
    """All pods are created at once: the operator may not see nodes, or a queue counts the pods."""
    not_before: float = 0.0
    """Unix seconds until which the unit gives way to others."""
    spread: float = 0.0
    """From 0 to 1, by unit, so that two units that wait for each other do not give up together."""

    def crowded(self) -> tuple[str, ...]:
        """Pools in which old pods of the unit still run."""
        known = (self.nodes.get(pod.node) for pod in self.stale if not pod.ended)
        return tuple(sorted({node.pool for node in known if node is not None and node.pool}))


def pool_of(pod: PodView, nodes: Mapping[str, NodeView]) -> str:
    """The node pool of a pod; empty if it is not known."""
    node = nodes.get(pod.node)
    return pod.pool or (node.pool if node is not None else "")


def lacking(sound_chips: Mapping[str, int], shape: Slice) -> tuple[str, ...]:
    """Pools that have too few sound hosts for a slice."""
    needed = shape.hosts * shape.chips_per_host
    return tuple(sorted(pool for pool, chips in sound_chips.items() if chips < needed))


def place(found: PlacementInput, now: float) -> dict[int, PodPlacement]:
    """The pods that may be created now, by host."""
    if now < found.not_before:
        return {}
    exist = {pod.host for pod in found.pods}
    size, places = found.shape.hosts, dict[int, PodPlacement]()
    for first in range(0, size * found.spec.slices, size):
        hosts = range(first, first + size)
        wanted = {first: PodPlacement()} if size == 1 else _place_slice(found, hosts)
        places |= {host: place for host, place in wanted.items() if host not in exist}
    return places


def _place_slice(found: PlacementInput, hosts: range) -> dict[int, PodPlacement]:
    here = [pod for pod in found.pods if pod.host in hosts]
    leader = next((pod for pod in here if pod.host == hosts[0]), None)
    if leader is not None and leader.node:
        pool = pool_of(leader, found.nodes)
        return dict.fromkeys(hosts, PodPlacement(pool) if pool else PodPlacement(near=True))
    pool = next((pod.pool for pod in here if pod.pool), "") or found.spec.node_selector.get(NODE_POOL, "")
    if not pool and not here:
        pool = _common_pool(found, (pod for pod in found.outgoing if pod.host in hosts))
    if pool:
        return dict.fromkeys(hosts, PodPlacement(pool, holds=True))
    if found.at_once or (here and leader is None):
        return dict.fromkeys(hosts, PodPlacement(holds=True, near=True))
    avoid = (*found.crowded(), *lacking(found.sound_chips, found.shape))[:AVOIDED]
    return {hosts[0]: PodPlacement(holds=True, avoid=avoid)}


def _common_pool(found: PlacementInput, pods: Iterable[PodView]) -> str:
    """The pool in which all these pods are; empty if there is none or it is not known."""
    pools = {pool_of(pod, found.nodes) for pod in pods}
    return pools.pop() if len(pools) == 1 else ""


def gives_way_until(status: LearnerUnitStatus, slices: int) -> float:
    """Unix seconds until which a unit that gave slices back creates no pods; 0 for all others."""
    last = status.restarts[-1] if status.restarts else None
    if slices == 1 or last is None or last.reason != CAPACITY_UNAVAILABLE:
        return 0.0
    return parse_time(last.time) + GIVE_WAY_SECONDS


def overdue(found: PlacementInput, now: float) -> tuple[str, float | None]:
    """Why the unit should leave its place for want of room, or nothing; and when to look again.

    A host that a replaced pod wants may be taken by now. And two units of several slices may each hold what the other
    one waits for.
    """
    wake = found.not_before if now < found.not_before else None
    size, kinds = found.shape.hosts, len(found.sound_chips)
    bound = {pod.host // size for pod in found.pods if pod.node}
    held = max((pod.scheduled_at or 0.0 for pod in found.pods if pod.node), default=0.0)
    ours = NODE_POOL not in found.spec.node_selector  # else the user chose the pool
    poor, crowded = (lacking(found.sound_chips, found.shape), found.crowded()) if ours else ((), ())
    for pod in found.pods:
        if (since := pod.unschedulable_since) is None:
            continue
        number, host = divmod(pod.host, size)
        # Only a leader that replaces another one names a pool that the operator chose.
        replaces = pod.made_for > found.placement or (host == 0 and pod.pool)
        if replaces and (number in bound or (pod.pool and ours)):
            end, why = since + RETURN_SECONDS, "its host is not available any more"
        elif host and pod.pool in poor and len(poor) < kinds:
            end, why = since + HOSTS_SECONDS, f"node pool {pod.pool} lacks hosts, and another one does not"
        elif host and pod.pool in crowded and kinds > 1:
            why = f"an old pod of the unit still has a host of node pool {pod.pool}"
            end = since + HOSTS_SECONDS
        elif host == 0 and bound - {number}:
            why = f"{len(bound)} of {found.spec.slices} slices have a place and are given back"
            end = max(since, held) + SLICES_SECONDS * (1 + found.spread)
        else:
            continue
        if end <= now:
            return f"{pod.name}: {why}: {pod.unschedulable}", None
        wake = earliest(wake, end)
    return "", wake

"""Which pods of a gang may be made now, and in which node pool each goes.

A slice of several hosts is one node pool, and the pool is its own. Pods that may be the first of their slice in a pool
*hold* it: no two slices hold one pool. The others follow their leader, host 0 of the slice, once it is bound: a plain
selector for its pool, which costs the scheduler next to nothing. So nobody comes into a pool but its holder, and after
it the holder's own peers (docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from atoll_operator.api.group import NODE_POOL
from atoll_operator.api.learnerunit import LearnerUnitSpec, LearnerUnitStatus
from atoll_operator.plan.clock import earliest, parse_time
from atoll_operator.plan.nodes import NodeView
from atoll_operator.plan.pods.topology import Slice
from atoll_operator.plan.pods.view import PodView
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE, PLACE_IS_LOST

RETURN_SECONDS = 15.0
"""For which a gang waits to get back into its old pool. The old pods get one second, and their kubelet a few more."""
RETURNS = 2
"""Restarts within the budget's window for which a gang returns to its pool: after more, that may be the matter."""
AVOIDED = 100
"""Pools that a leader names at most."""
HOSTS_SECONDS = 60.0
"""For which a slice waits in a pool that lacks hosts while another one of its kind does not."""
SLICES_SECONDS = 600.0
"""For which a unit holds some of its slices while it waits for the others; an autoscaler makes a pool in minutes."""
GIVE_WAY_SECONDS = 30.0
"""After a unit gave its slices back: the scheduler tries a pod that waits again within 10 s, a new one at once."""


@dataclass(frozen=True, slots=True)
class Spot:
    """Where one pod may run, beyond what its unit's spec asks of a node."""

    pool: str = ""
    """The node pool; empty: any."""
    holds: bool = False
    """No pod of another slice that holds may be in the same pool."""
    near: bool = False
    """In the pool of its gang's other pods of the slice: an affinity, for want of the pool's name."""
    avoid: tuple[str, ...] = ()
    """Pools that lack hosts or have an old pod on one, and are taken only where no other one has room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """What is known of a gang when its pods are made."""

    spec: LearnerUnitSpec
    shape: Slice
    pods: tuple[PodView, ...]
    """Those of the gang that exist."""
    former: tuple[PodView, ...] = ()
    """Those of gangs before it, to whose pools it may return; empty when it should not."""
    stale: tuple[PodView, ...] = ()
    """Those of other gangs that are still there, and hold their hosts until they have ended."""
    nodes: Mapping[str, NodeView]
    sound_chips: Mapping[str, int] = field(default_factory=dict)
    """By node pool of the right kind, the chips of the nodes that stay; empty where nobody may see nodes."""
    mending: bool = False
    """Some of its pods stayed when others were lost: their places are the only ones for those that are made anew."""
    at_once: bool = False
    """All pods are wanted at once: nobody may see nodes, or a queue counts the pods."""
    not_before: float = 0.0
    """Unix seconds; the unit gives way to others until then."""
    spread: float = 0.0
    """From 0 to 1; of this unit, so that two that wait for each other do not give up together."""

    def slices(self) -> list[range]:
        """The hosts of each slice."""
        hosts = self.shape.hosts
        return [range(first, first + hosts) for first in range(0, hosts * self.spec.slices, hosts)]

    def lacking(self) -> tuple[str, ...]:
        """Pools without the hosts for a slice."""
        needed = self.shape.hosts * self.shape.chips_per_host
        return tuple(sorted(pool for pool, chips in self.sound_chips.items() if chips < needed))

    def crowded(self) -> tuple[str, ...]:
        """Pools in which pods of the unit's other gangs still run."""
        known = (self.nodes.get(pod.node) for pod in self.stale if not pod.ended)
        return tuple(sorted({node.pool for node in known if node is not None and node.pool}))


def spots(gang: Gathering, now: float) -> dict[int, Spot]:
    """The pods that may be made now, by host; those that exist are left out."""
    if now < gang.not_before:
        return {}
    exist = {pod.host for pod in gang.pods}
    found: dict[int, Spot] = {}
    for hosts in gang.slices():
        wanted = {hosts[0]: Spot()} if len(hosts) == 1 else _spots(gang, hosts)
        found |= {host: spot for host, spot in wanted.items() if host not in exist}
    return found


def _spots(gang: Gathering, hosts: range) -> dict[int, Spot]:
    here = [pod for pod in gang.pods if pod.host in hosts]
    leader = next((pod for pod in here if pod.host == hosts[0]), None)
    if leader is not None and leader.node:
        pool = _pool_of(gang, leader)
        return dict.fromkeys(hosts, Spot(pool) if pool else Spot(near=True))
    pool = next((pod.pool for pod in here if pod.pool), "") or gang.spec.node_selector.get(NODE_POOL, "")
    if not pool and not here:
        pool = _left([pod for pod in gang.former if pod.host in hosts and pod.node], gang.nodes)
    if pool:
        return dict.fromkeys(hosts, Spot(pool, holds=True))
    if gang.at_once or (here and leader is None):
        return dict.fromkeys(hosts, Spot(holds=True, near=True))
    return {hosts[0]: Spot(holds=True, avoid=(*gang.crowded(), *gang.lacking())[:AVOIDED])}


def _pool_of(gang: Gathering, pod: PodView) -> str:
    node = gang.nodes.get(pod.node)
    return pod.pool or (node.pool if node is not None else "")


def _left(former: list[PodView], nodes: Mapping[str, NodeView]) -> str:
    """The pool that the last gang ran in, if all its nodes are there and stay; else empty."""
    last = max((pod.gang for pod in former), default=0)
    known = [nodes.get(pod.node) for pod in former if pod.gang == last]
    pools = {node.pool if node is not None and node.stays else "" for node in known}
    return pools.pop() if len(pools) == 1 else ""


def has_hosts(gang: Gathering) -> bool:
    """Whether no pool that it is in is known to lack hosts: a pod that is lost may have gone with its own."""
    pools = {_pool_of(gang, pod) for pod in gang.pods if pod.node}
    return not pools.intersection(gang.lacking())


def may_return(status: LearnerUnitStatus) -> bool:
    """Whether a new gang should go where the old one was: a process failed there, not the place."""
    if status.heal_start_time is None or not 0 < len(status.restarts) <= RETURNS:
        return False
    return status.restarts[-1].reason not in PLACE_IS_LOST


def gives_way_until(status: LearnerUnitStatus, slices: int) -> float:
    """Unix seconds before which a unit that gave slices back makes no pods; in the past for all others."""
    last = status.restarts[-1] if status.restarts else None
    if slices == 1 or last is None or last.reason != CAPACITY_UNAVAILABLE:
        return 0.0
    return parse_time(last.time) + GIVE_WAY_SECONDS


def overdue(gang: Gathering, now: float) -> tuple[str, float | None]:
    """Why a gang should give up its place and look for another, or nothing; and when to look again.

    A pool that the operator chose may have been taken meanwhile. And two units of several slices may each hold what the
    other one waits for.
    """
    wake = gang.not_before if now < gang.not_before else None
    bound = {pod.host // gang.shape.hosts for pod in gang.pods if pod.node}
    ours = NODE_POOL not in gang.spec.node_selector  # the operator's to choose
    lacking, crowded = (gang.lacking(), gang.crowded()) if ours else ((), ())
    for pod in gang.pods:
        if pod.unschedulable_since is None:
            continue
        number, host = divmod(pod.host, gang.shape.hosts)
        leader = next((other for other in gang.pods if other.host == pod.host - host), pod)
        if gang.mending and number in bound:
            end = pod.unschedulable_since + RETURN_SECONDS
            why = f"its host is not to be had again: {pod.unschedulable}"
        elif leader.pool and ours:
            end = pod.unschedulable_since + RETURN_SECONDS
            why = f"node pool {leader.pool}, where the unit was before, has no room: {pod.unschedulable}"
        elif host and pod.pool in lacking and len(lacking) < len(gang.sound_chips):
            end = pod.unschedulable_since + HOSTS_SECONDS
            why = f"node pool {pod.pool} lacks hosts, and another one does not: {pod.unschedulable}"
        elif host and pod.pool in crowded and len(gang.sound_chips) > 1:
            end = pod.unschedulable_since + HOSTS_SECONDS
            why = f"an old pod of the unit still has a host of node pool {pod.pool}: {pod.unschedulable}"
        elif host == 0 and bound - {number}:
            held = max(other.scheduled_at or 0.0 for other in gang.pods if other.node)
            end = max(pod.unschedulable_since, held) + SLICES_SECONDS * (1 + gang.spread)
            why = f"{len(bound)} of {gang.spec.slices} slices have a place and are given back: {pod.unschedulable}"
        else:
            continue
        if end <= now:
            return f"{pod.name}: {why}", None
        wake = earliest(wake, end)
    return "", wake

"""Which missing pods of a unit may be created now, and in which node pool each goes. A slice of several hosts has a
node pool of its own. Pods that may be the first of their slice in a pool *hold* it: no two slices hold one pool. The
others follow their leader, host 0 of the slice, once it is bound. They have a plain selector for its pool, which costs
the scheduler almost nothing (docs/decisions/placement.md)."""

from __future__ import annotations

from atoll_operator.api.group import NODE_POOL
from atoll_operator.plan.conditions import earliest, parse_time
from atoll_operator.plan.pods.gang import PodPlacement
from atoll_operator.plan.pods.view import Pods
from atoll_operator.plan.unit.failure import CAPACITY_UNAVAILABLE
from atoll_operator.plan.unit.incarnation import jitter
from atoll_operator.plan.unit.unit import UnitObserved

Places = dict[int, PodPlacement]
RETURN_SECONDS = 15.0
"""How long a replaced pod may be unschedulable in its slice's pool before the unit leaves its place."""
AVOIDED = 100
"""Largest number of pools in a leader's affinity."""
HOSTS_SECONDS = 60.0
"""How long a slice waits in a pool that lacks hosts while another pool of its kind lacks none."""
SLICES_SECONDS = 600.0
"""How long a unit holds some of its slices while it waits for the others. An autoscaler creates a pool in minutes."""
GIVE_WAY_SECONDS = 30.0
"""How long a unit that gave its slices back creates no pods. The scheduler retries a waiting pod within 10 s, but tries
a new one at once."""


def place(unit: UnitObserved, kept: Pods, outgoing: Pods, stale: Pods) -> Places:
    """The pods that may be created now, by host. Of the pods of this placement, `kept` stay, and `outgoing` are
    replaced once they have ended. All others, `stale`, have their hosts until they have ended."""
    if unit.now < _gives_way_until(unit):
        return {}
    taken = {pod.host for pod in (*kept, *(pod for pod in outgoing if not pod.ended))}
    size, places = unit.slice.hosts, Places()
    for first in range(0, unit.hosts, size):
        hosts = range(first, first + size)
        here, gone = ([pod for pod in pods if pod.host in hosts] for pods in (kept, outgoing))
        wanted = {first: PodPlacement()} if size == 1 else _place_slice(unit, hosts, here, gone, stale)
        places |= {host: place for host, place in wanted.items() if host not in taken}
    return places


def _place_slice(unit: UnitObserved, hosts: range, here: Pods, gone: Pods, stale: Pods) -> Places:
    leader = next((pod for pod in here if pod.host == hosts[0]), None)
    if leader is not None and leader.node:
        pool = unit.pool_of(leader)
        return dict.fromkeys(hosts, PodPlacement(pool) if pool else PodPlacement(near=True))
    pool = next((pod.pool for pod in here if pod.pool), "") or unit.spec.node_selector.get(NODE_POOL, "")
    if not pool and not here:  # all pods are replaced: in their pool, if they shared one
        pools = {unit.pool_of(pod) for pod in gone}
        pool = pools.pop() if len(pools) == 1 else ""
    if pool:
        return dict.fromkeys(hosts, PodPlacement(pool, holds=True))
    # A queue admits all pods or none, and by then another unit may have taken any pool.
    at_once = unit.spec.queue_name is not None or not unit.sees_nodes
    if at_once or (here and leader is None):
        return dict.fromkeys(hosts, PodPlacement(holds=True, near=True))
    avoid = tuple(sorted(_short_pools(unit, stale)))[:AVOIDED]
    return {hosts[0]: PodPlacement(holds=True, avoid=avoid)}


def _short_pools(unit: UnitObserved, stale: Pods) -> set[str]:
    """Node pools of the unit's kind that lack hosts: too few are sound, or an old pod of the unit still has one."""
    taken = {unit.pool_of(pod) for pod in stale if pod.node and not pod.ended}
    return {*unit.poor_pools, *(taken & unit.sound_chips.keys())}


def _gives_way_until(unit: UnitObserved) -> float:
    """Unix seconds until which a unit that gave slices back creates no pods; 0 for all others."""
    last = unit.last_restart
    if unit.spec.slices == 1 or last is None or last.reason != CAPACITY_UNAVAILABLE:
        return 0.0
    return parse_time(last.time) + GIVE_WAY_SECONDS


def overdue(unit: UnitObserved, kept: Pods, stale: Pods) -> tuple[str, float | None]:
    """Why the unit should leave its place because there is no room (empty if it should not), and when to look again.
    The host of a replaced pod may be taken. Two units of several slices may each hold what the other waits for."""
    way = _gives_way_until(unit)
    wake = way if unit.now < way else None
    size = unit.slice.hosts
    placed = [pod for pod in kept if pod.node]
    bound = {pod.host // size for pod in placed}
    held = max((pod.scheduled_at or 0.0 for pod in placed), default=0.0)
    ours = NODE_POOL not in unit.spec.node_selector  # otherwise the user chose the pool
    short = _short_pools(unit, stale)
    for pod in kept:
        if (since := pod.unschedulable_since) is None:
            continue
        number, host = divmod(pod.host, size)
        # Only a leader that replaces another one names a pool that the operator chose.
        replaces = pod.made_for > pod.placement or (host == 0 and pod.pool and ours)
        if replaces and (number in bound or (pod.pool and ours)):
            end, why = since + RETURN_SECONDS, "its host is not available any more"
        elif host and ours and pod.pool in short and len(short) < len(unit.sound_chips):
            end, why = since + HOSTS_SECONDS, f"node pool {pod.pool} lacks hosts, and another one does not"
        elif host == 0 and bound - {number}:
            why = f"{len(bound)} of {unit.spec.slices} slices have a place and are given back"
            # The jitter is by unit, so that two units that wait for each other do not give up together.
            end = max(since, held) + SLICES_SECONDS * (1 + jitter(unit.uid, unit.status.placement))
        else:
            continue
        if end <= unit.now:
            return f"{pod.name}: {why}: {pod.unschedulable}", None
        wake = earliest(wake, end)
    return "", wake

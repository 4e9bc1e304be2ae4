"""What a unit's gang is made of, where its pods may be made, and whether it may stay when some of them are lost."""

from __future__ import annotations

from dataclasses import replace

from atoll_operator.plan.pods.gang import Gang
from atoll_operator.plan.pods.template import LEAVE_SECONDS
from atoll_operator.plan.unit import budget
from atoll_operator.plan.unit.muster import Muster
from atoll_operator.plan.unit.placement import Gathering, gives_way_until, has_hosts, may_return
from atoll_operator.plan.unit.status import Orders, UnitObserved


def gang_of(unit: UnitObserved, orders: Orders) -> Gang:
    """That of now; `check` says whether there can be one."""
    return Gang(
        namespace=unit.namespace,
        unit=unit.name,
        uid=unit.uid,
        number=unit.status.gang,
        incarnation=unit.status.incarnation,
        spec=unit.spec,
        settings=replace(
            orders.settings,
            image=unit.spec.image or orders.settings.image,
            template=unit.spec.pod_template or orders.settings.template,
        ),
        # Who sees no nodes learns of a lost one by the deletion of its pods: it comes when we would have judged, or
        # the 40 to 55 s until the node is not ready would be more than a minute with it.
        leave_seconds=LEAVE_SECONDS if unit.sees_nodes else orders.recovery.node_lost_seconds,
    )


def gathering_of(unit: UnitObserved, gang: Gang, roll: Muster) -> Gathering:
    """What is known of where its pods may be."""
    # A queue admits all pods or none, and by then another unit may be where this one was.
    queued = unit.spec.queue_name is not None
    seen = (*unit.pods, *unit.departed.values()) if may_return(unit.status) and not queued else ()
    return Gathering(
        spec=unit.spec,
        shape=gang.slice,
        pods=tuple(roll.pods.values()),
        former=tuple(pod for pod in seen if pod.gang < gang.number),
        stale=roll.others(unit.pods),
        nodes=unit.nodes,
        sound_chips=unit.sound_chips,
        mending=gang.incarnation > gang.number,
        at_once=queued or not unit.sees_nodes,
        not_before=gives_way_until(unit.status, unit.spec.slices),
        spread=budget.jitter(unit.uid, gang.number),
    )


def stays(unit: UnitObserved, orders: Orders, gang: Gang, roll: Muster) -> bool:
    """Whether the gang may stay, with pods made anew for those that are lost."""
    damage = roll.damage
    # Kueue counts the pods of a group, and keeps those that have ended.
    returns = unit.spec.queue_name is None and has_hosts(gathering_of(unit, gang, roll))
    alike = all(pod.contract == gang.contract for pod in damage.kept)
    return orders.recovery.in_place and (not damage.lost or (returns and alike))

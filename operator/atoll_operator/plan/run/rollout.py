"""Changes of the spec that need new pods: they go from unit to unit and keep the quorum."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.run.observed import KIND, PLACING, ROLLED, RunObserved, UnitFacts
from atoll_operator.plan.run.workloads import syncer_digest


@dataclass(frozen=True, slots=True)
class Rollout:
    now: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    """Units whose spec is not the wanted one, including those in `now`."""
    message: str = ""
    """Why the others wait; empty if none does."""
    held: frozenset[str] = frozenset()
    """Units that get no larger batch yet, also some that are not there and are created later."""


def plan_rollout(
    run: RunObserved, wanted: Mapping[str, LearnerUnitSpec], new: Collection[str], now: float
) -> Rollout:
    """Plan the next step; `new` are units to create. An idle unit has nothing to lose and is changed at once,
    so a broken image can be replaced. A unit that learns, or that has lost the syncer, is changed when all
    other units learn and K of them are left, so at most one is away at a time; units created by users count as
    others that learn. A unit with the new spec that has found no hosts for ten minutes does not block the
    others, unless the change says where pods may run, because then the change may be the cause. A unit that
    failed with the new spec does block them. The units' conditions are current while the whole syncer serves,
    since `serving_since`. No unit gets a larger batch while a shard may not know it, and the others do not wait
    for that."""
    units, quorum, serving_since = run.own_units, run.spec.quorum.min, run.syncer.serving_since
    own = {name: unit for name, unit in units.items() if unit.owned and name in wanted}
    rolled = {spec.pool: ROLLED(spec) for spec in {spec.pool: spec for spec in wanted.values()}.values()}
    changed = (name for name, unit in own.items() if unit.rolled not in (None, rolled[wanted[name].pool]))
    outdated = tuple(sorted(changed))
    held = _held(run, wanted, new, outdated)
    shards = f"{len(held)} units wait until all shards know the new batch" if held else ""
    free = [name for name in outdated if name not in held]
    idle = tuple(name for name in free if own[name].idle(serving_since, now))
    waiting = [name for name in free if name not in idle]
    others = {name: unit for name, unit in units.items() if unit.by_hand}
    learning = {name for name, unit in (own | others).items() if unit.learning}
    there = wanted.keys() & units.keys()  # also one that is being deleted, and comes back
    total = len(there.union(new, others))
    if idle or not waiting:
        turn = f"{len(waiting)} of {total} units wait for their turn" if waiting else ""
        return Rollout(idle, outdated, "; ".join(filter(None, (shards, turn))), held)
    left = f"{len(waiting)} of {total} units have yet to be made anew for the new spec"
    left = f"{shards}; {left}" if shards else left
    if serving_since is None:
        return Rollout((), outdated, f"{left}; waits for the syncer", held)
    chosen = min(waiting, key=lambda name: (name in learning, name))
    moves = PLACING(own[chosen].spec) != PLACING(wanted[chosen])  # the change may be why there are no hosts
    homeless = {name for name in own.keys() - outdated if not moves and own[name].homeless(now)}
    if len((learning | homeless) - {chosen}) < total - 1:
        others_learn = f"{left}; waits until all others learn, {len(learning)} of {total} do"
        return Rollout((), outdated, others_learn, held)
    if len(learning - {chosen}) < quorum:
        spares = f"quorum.min {quorum} of {total} units spares none: lower it or add a unit"
        return Rollout((), outdated, f"{left}; {spares}", held)
    return Rollout((chosen,), outdated, left, held)


def _held(
    run: RunObserved, wanted: Mapping[str, LearnerUnitSpec], new: Collection[str], outdated: Collection[str]
) -> frozenset[str]:
    """Units whose batch grows while a shard was started with another contract. A unit to create is compared with its
    pool's units, or with all units if the pool has none."""
    if not (new or outdated):
        return frozenset()
    units, pools = run.own_units, dict[str, int]()
    for unit in units.values():
        if unit.spec is not None and not unit.by_hand:
            pools[unit.spec.pool] = max(pools.get(unit.spec.pool, 0), unit.spec.batch)
    most = max(pools.values(), default=math.inf)
    grow = {name for name in new if wanted[name].batch > pools.get(wanted[name].pool, most)}
    for name in outdated:
        spec = units[name].spec
        if spec is not None and spec.batch < wanted[name].batch:
            grow.add(name)
    known = not grow or {"", syncer_digest(run)}.issuperset(pod.contract for pod in run.syncer_pods)
    return frozenset() if known else frozenset(grow)


def of_another_kind(unit: UnitFacts, wanted: LearnerUnitSpec) -> bool:
    """Whether the unit has to be deleted and created again."""
    return unit.kind not in (None, KIND(wanted))

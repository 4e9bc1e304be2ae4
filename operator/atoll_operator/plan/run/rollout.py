"""Changes of the spec that need new pods: they go from unit to unit and keep the quorum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from atoll_operator.api.learnerunit import LearnerUnitSpec
from atoll_operator.plan.limits import fitting
from atoll_operator.plan.run.observed import KIND, PLACING, ROLLED, RunObserved, UnitFacts
from atoll_operator.plan.run.workloads import syncer_digest

_BATCH = attrgetter("batch")


@dataclass(frozen=True, slots=True)
class Rollout:
    now: tuple[str, ...] = ()
    outdated: tuple[str, ...] = ()
    """Units whose spec is not the wanted one, including those in `now`."""
    message: str = ""
    """Why the others wait; empty if none does."""


def plan_rollout(run: RunObserved, wanted: Mapping[str, LearnerUnitSpec], now: float) -> Rollout:
    """Plan the next step. An idle unit has nothing to lose and is changed at once, so a broken image can be replaced. A
    unit that learns, or that has lost the syncer, is changed when all other units learn and K of them are left, so at
    most one is away at a time; units created by users count as others that learn. A unit with the new spec that has
    found no hosts for ten minutes does not block the others, unless the change says where pods may run, because then
    the change may be the cause. A unit that failed with the new spec does block them. The units' conditions are current
    while the whole syncer serves, since `serving_since`. No unit gets a batch that a shard does not know yet."""
    units, quorum, serving_since = run.own_units, run.spec.quorum.min, run.syncer.serving_since
    own = {name: unit for name, unit in units.items() if unit.owned and name in wanted}
    rolled = {spec.pool: ROLLED(spec) for spec in {spec.pool: spec for spec in wanted.values()}.values()}
    changed = (name for name, unit in own.items() if unit.rolled not in (None, rolled[wanted[name].pool]))
    outdated = tuple(sorted(changed))
    idle = tuple(name for name in outdated if own[name].idle(serving_since, now))
    waiting = [name for name in outdated if name not in idle]
    others = {name: unit for name, unit in units.items() if unit.by_hand}
    learning = {name for name, unit in (own | others).items() if unit.learning}
    there = wanted.keys() & units.keys()  # also one that is being deleted, and comes back
    total = len(there | fitting(run.room, wanted, run.units) | others.keys())
    if any(_differs(own[name], wanted[name], _BATCH) for name in outdated):
        known = {"", syncer_digest(run)}
        if not known.issuperset(pod.contract for pod in run.syncer_pods):
            return Rollout((), outdated, f"{len(outdated)} units wait until all shards know the new batch")
    if idle or not waiting:
        turn = f"{len(waiting)} of {total} units wait for their turn"
        return Rollout(idle, outdated, turn if waiting else "")
    left = f"{len(waiting)} of {total} units have yet to be made anew for the new spec"
    if serving_since is None:
        return Rollout((), outdated, f"{left}; waits for the syncer")
    chosen = min(waiting, key=lambda name: (name in learning, name))
    moves = _differs(own[chosen], wanted[chosen], PLACING)  # the change may be why there are no hosts
    homeless = {name for name in own.keys() - outdated if not moves and own[name].homeless(now)}
    if len((learning | homeless) - {chosen}) < total - 1:
        return Rollout((), outdated, f"{left}; waits until all others learn, {len(learning)} of {total} do")
    if len(learning - {chosen}) < quorum:
        spares = f"quorum.min {quorum} of {total} units spares none: lower it or add a unit"
        return Rollout((), outdated, f"{left}; {spares}")
    return Rollout((chosen,), outdated, left)


def of_another_kind(unit: UnitFacts, wanted: LearnerUnitSpec) -> bool:
    """Whether the unit has to be deleted and created again."""
    return unit.kind not in (None, KIND(wanted))


def _differs(unit: UnitFacts, wanted: LearnerUnitSpec, fields: Callable[[LearnerUnitSpec], object]) -> bool:
    return unit.spec is not None and fields(unit.spec) != fields(wanted)

"""Limits of a namespace: which runs, and which units made by hand, may begin or grow. Older ones come first. Those that
have begun keep their hosts, even if an older one waits or the limits are lowered. One that does not fit does not block
those after it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from atoll_operator.api.learnerunit import LearnerUnit, LearnerUnitSpec
from atoll_operator.api.sections import MAX_UNITS, Pool
from atoll_operator.api.trainingrun import TrainingRunSpec, TrainingRunStatus
from atoll_operator.plan.conditions import find
from atoll_operator.plan.pods.topology import slice_of

NAMESPACE_LIMIT = "NamespaceLimit"
LOOK_SECONDS = 10.0
"""Time until a run or unit that waits looks for room again."""


class Limits(BaseModel):
    """What the runs of one namespace may have together; None: any number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    runs: Annotated[int, Field(ge=0)] | None = None
    """Runs that are neither suspended nor over."""
    hosts: Annotated[int, Field(ge=0)] | None = None
    """Hosts of their units, and of units made by hand."""


class NamespaceLimits(Limits):
    namespaces: Mapping[str, Limits] = {}
    """Other limits for single namespaces, by name."""

    def of(self, namespace: str) -> Limits:
        own = self.namespaces.get(namespace, Limits()).model_dump(exclude_unset=True)
        return Limits(**{"runs": self.runs, "hosts": self.hosts} | own)


class Claim(NamedTuple):
    """What a run, or a unit made by hand, has and wants. Claims sort by age."""

    created: str
    kind: str
    name: str
    has: int | None
    """Hosts; None: it has not begun."""
    wants: int


class Room(NamedTuple):
    hosts: int | None
    """None: it may not begin."""
    message: str = ""
    """Which limit keeps it from what it wants; empty if none does."""


def rooms(claims: Iterable[Claim], limits: Limits) -> dict[Claim, Room]:
    """What the limits leave for each claim of a namespace."""
    every, found = sorted(claims), dict[Claim, Room]()
    begun = [claim for claim in every if claim.has is not None]
    runs = sum(claim.kind == "TrainingRun" for claim in begun)
    hosts = sum(min(claim.has or 0, claim.wants) for claim in begun)
    for claim in every:
        more = claim.wants - (claim.has or 0)
        begins = claim.has is None and claim.kind == "TrainingRun"
        problem = ""
        if begins and limits.runs is not None and runs >= limits.runs:
            problem = f"runs: {runs} of at most {limits.runs} have begun; suspend or delete one"
        elif more > 0 and limits.hosts is not None and hosts + more > limits.hosts:
            taken = f"hosts: {hosts} of at most {limits.hosts} are taken"
            problem = f"{taken}, and this needs {more} more; use {max(limits.hosts - hosts, 0)}"
        if problem:
            who = "an administrator may raise the operator's `limits`"
            found[claim] = Room(claim.has, f"{problem}, or wait; {who}")
        else:
            found[claim] = Room(claim.wants)
            runs, hosts = runs + begins, hosts + max(more, 0)
    return found


def run_claim(
    metadata: Mapping[str, Any], spec: TrainingRunSpec | None, status: TrainingRunStatus
) -> Claim | None:
    """None if the run is over or suspended. One whose spec cannot be read, None, keeps what it has. One that has hosts
    has begun also if this version does not know its phase, which then reads as `Pending`."""
    begun = status.phase != "Suspended" and (status.phase != "Pending" or status.hosts is not None)
    if status.phase in ("Complete", "Failed") or (not begun and (spec is None or spec.suspend)):
        return None
    wants = status.hosts or 0
    if spec is not None:
        count = sizes(spec)
        wants = sum(count[pool.name] * _hosts(pool, pool.slices_per_unit) for pool in spec.pools)
    has = None if not begun else wants if status.hosts is None else status.hosts
    return Claim(metadata["creationTimestamp"], "TrainingRun", metadata["name"], has, wants)


def unit_claim(metadata: Mapping[str, Any], unit: LearnerUnit) -> Claim:
    """The claim of a unit made by hand, for a run that has begun."""
    wants, status = unit_hosts(unit.spec), unit.status
    waits = find(status.conditions, "Scheduled").reason in ("Suspended", "Finished", NAMESPACE_LIMIT)
    has = wants if status.incarnation and not waits else None
    return Claim(metadata["creationTimestamp"], "LearnerUnit", metadata["name"], has, wants)


def unit_hosts(spec: LearnerUnitSpec) -> int:
    return _hosts(spec, spec.slices)


def _hosts(kind: Pool | LearnerUnitSpec, slices: int) -> int:
    """Hosts of a unit. If this version does not know its kind, one for each slice."""
    try:
        return slices * slice_of(kind.accelerator, kind.topology, kind.machine_type).hosts
    except ValueError:
        return slices


def fitting(room: Room, wanted: Mapping[str, LearnerUnitSpec], there: Collection[str]) -> set[str]:
    """Names of the wanted units that are not there and may be created."""
    missing = [name for name in wanted if name not in there]
    if not room.message:
        return set(missing)
    left = (room.hosts or 0) - sum(unit_hosts(unit) for name, unit in wanted.items() if name in there)
    ends = itertools.accumulate(unit_hosts(wanted[name]) for name in missing)
    return {name for name, end in zip(missing, ends, strict=True) if end <= left}


def sizes(spec: TrainingRunSpec) -> dict[str, int]:
    """Number of units by pool, in the order of the spec. `spec.units` fills the pools in order, each up to its own
    `units`, so the last pools shrink first. Further units go to the first pool, and to the next one if it is full."""
    result = {pool.name: pool.units for pool in spec.pools}
    if (left := spec.units) is None:
        return result
    for name, units in result.items():
        result[name] = min(units, left)
        left -= result[name]
    for name, units in result.items():
        result[name] = min(units + left, MAX_UNITS)
        left -= result[name] - units
    return result

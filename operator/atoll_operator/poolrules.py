"""CEL rules of a pool or a unit: which slices there are, how many make a unit, how they can be bought.

Made from `plan/tpu.py`, so that the API and the plans cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atoll_operator.api.trainingrun import Pool
from atoll_operator.cel import Rule, fixed, given, quoted, rule, valued
from atoll_operator.plan.tpu import (
    CHIPS,
    CUBE,
    GENERATIONS,
    LONGEST_SIDE,
    MAX_HOSTS,
    Generation,
    offers,
)

FIXED_POOL: Mapping[str, str] = {
    "accelerator": "a pool's units are slices of one kind",
    "topology": "a pool's units are slices of one kind",
    "machineType": "a pool's units are slices of one kind",
    "slicesPerUnit": "a pool's units are slices of one kind",
    "capacity": "a pool's units are bought in one way",
    "reservationName": "a pool's units are bought in one way",
}
DEFAULTS: Mapping[str | None, str | int] = {
    item.alias: item.default for item in Pool.model_fields.values() if isinstance(item.default, str | int)
}
"""The schema has none (`atoll_operator.schema.without_defaults_in_lists`)."""
NEW_POOL = "add a pool of another name and remove this one"


def pool_rules() -> Iterator[Rule]:
    """What the API server refuses of one pool."""
    yield from slice_rules("slicesPerUnit")
    for generation in GENERATIONS:
        yield _capacity_rule(generation)
    yield rule(
        "(has(self.capacity) && self.capacity == 'Reservation') == has(self.reservationName)",
        "reservationName is needed with capacity Reservation, and only then",
        "capacity",
    )
    for name, reason in FIXED_POOL.items():
        yield fixed(name, f"spec.pools cannot be changed in {name}: {reason}; {NEW_POOL}", DEFAULTS.get(name))


def slice_rules(field: str) -> Iterator[Rule]:
    """Which slices there are, and how many of them a unit can have; `field` says how many."""
    for generation in GENERATIONS:
        yield from _shape_rules(generation)
        yield _host_rule(generation, field)
    yield rule(
        f"!has(self.{field}) || self.{field} == 1 || [self.topology.split('x').map(side, int(side))].all(t, "
        f"t[0] * t[1] * (t.size() == 3 ? t[2] : 1) * self.{field} <= {MAX_HOSTS * CHIPS})",
        f"{field} is too large: a unit has at most {MAX_HOSTS} hosts of {CHIPS} chips in all its slices",
        field,
    )


def mesh_rule() -> Rule:
    """Of a run's spec: the devices of each unit can be split as `inner.mesh` says, and no tensor over two slices."""
    doubled = [item.accelerator for item in GENERATIONS if item.devices_per_chip == 2]
    devices = f"t[0] * t[1] * (t.size() == 3 ? t[2] : 1) * (p.accelerator in {quoted(doubled)} ? 2 : 1)"
    slices, mesh = given("p", "slicesPerUnit", DEFAULTS["slicesPerUnit"]), "self.inner.mesh"
    return rule(
        f"{mesh}.tensor * {mesh}.expert <= 1 || self.pools.all(p, [p.topology.split('x').map(side, int(side))].all(t, "
        f"({devices}) % {mesh}.tensor == 0 && ({devices}) * {slices} % ({mesh}.tensor * {mesh}.expert) == 0))",
        "inner.mesh cannot be laid over the units of a pool: tensor must divide the devices of one slice, and tensor x "
        f"expert those of a unit (a device is a chip; of {', '.join(doubled)} half a chip)",
        "inner.mesh",
    )


def _shape_rules(generation: Generation) -> Iterator[Rule]:
    """Which slices there are."""
    accelerator = generation.accelerator
    other = f"self.accelerator != '{accelerator}' || "
    small = tuple(dict.fromkeys(name for machine in generation.machines for name in machine.topologies))
    cubes = max(machine.cubes for machine in generation.machines)
    yield valued(
        f"{other}self.topology in {quoted(small)}" + (f" || ({_of_cubes(cubes)})" if cubes else ""),
        "topology",
        f"does not exist for {accelerator}; {offers(generation)}",
    )
    machines = tuple(machine.name for machine in generation.machines)
    yield valued(
        f"{other}!has(self.machineType) || self.machineType in {quoted(machines)}",
        "machineType",
        f"is not one of {accelerator}; one of {', '.join(machines)}",
    )
    for machine in generation.machines:
        foreign = tuple(name for name in small if name not in machine.topologies)
        if foreign:
            makes = f"self.topology in {quoted(machine.topologies)}"
            right = f"makes slices of topology {', '.join(machine.topologies)}"
            if machine.cubes:
                makes = f"!(self.topology in {quoted(foreign)})"
                right = f"makes no slices of topology {', '.join(foreign)}"
            yield valued(
                f"!has(self.machineType) || self.machineType != '{machine.name}' || {makes}",
                "machineType",
                right,
            )
    for topology in generation.ambiguous():
        names = " or ".join(item.name for item in generation.machines if item.makes(topology))
        yield valued(
            f"{other}self.topology != '{topology}' || has(self.machineType)",
            "topology",
            f"machineType is needed, because {accelerator} has this topology on {names}",
        )


def _host_rule(generation: Generation, field: str) -> Rule:
    """Several slices are of several hosts each."""
    single, words = _of_one_host(generation)
    return rule(
        f"self.accelerator != '{generation.accelerator}' || !has(self.{field}) || self.{field} == 1 || !({single})",
        f"{field} must be 1 for slices of one host: {words}",
        field,
    )


def _capacity_rule(generation: Generation) -> Rule:
    """Flex-start is for single hosts."""
    single, words = _of_one_host(generation)
    flexible = f"self.accelerator != '{generation.accelerator}' || !has(self.capacity) || self.capacity != 'FlexStart'"
    if generation.flex_start:
        return valued(
            f"{flexible} || {single}", "capacity", f"is offered for slices of one host only: {words}"
        )
    right = "OnDemand, Spot or Reservation is"
    return valued(flexible, "capacity", f"is not offered for {generation.accelerator}; {right}")


def _of_one_host(generation: Generation) -> tuple[str, str]:
    """Whether a slice has one host, as CEL and in words."""
    topologies, machines = _single(generation)
    single = f"self.topology in {quoted(topologies)}"
    words = f"of {generation.accelerator} topology {', '.join(topologies)}"
    if machines:
        single += f" || (has(self.machineType) && self.machineType in {quoted(machines)})"
        words += f" and machineType {', '.join(machines)}"
    return single, words


def _of_cubes(most: int) -> str:
    """Whether a topology is of whole cubes; `[x].all` gives its sides a name."""
    return (
        "self.topology.matches('^[1-9][0-9]*x[1-9][0-9]*x[1-9][0-9]*$') && "
        f"[self.topology.split('x').map(side, int(side))].all(t, t.all(side, side % {CUBE} == 0) && "
        f"t[0] <= t[1] && t[1] <= t[2] && t[2] <= {LONGEST_SIDE} && t[0] * t[1] * t[2] <= {most * CUBE**3})"
    )


def _single(generation: Generation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Topologies of one host, and machine types that make no others of those that are left."""
    topologies = tuple(
        topology
        for topology in generation.topologies()
        if all(machine.hosts(topology) == 1 for machine in generation.machines if machine.makes(topology))
    )
    machines = tuple(
        machine.name
        for machine in generation.machines
        if not set(machine.all_topologies()) <= set(topologies)
        and all(machine.hosts(topology) == 1 for topology in machine.all_topologies())
    )
    return topologies, machines

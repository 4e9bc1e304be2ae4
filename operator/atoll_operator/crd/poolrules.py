"""CEL rules of a pool or a unit: which slices there are, how many make a unit, how they can be bought.

Made from `plan/pods/topology.py`, so that the API and the plans cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from atoll_operator.api.pool import Pool
from atoll_operator.crd.cel import Rule, explained, fixed, given, kept, lists, quoted, rule, table
from atoll_operator.plan.pods.topology import (
    CHIPS,
    CUBE,
    GENERATIONS,
    LONGEST_SIDE,
    MAX_HOSTS,
    Generation,
    offers,
)

ONE_KIND = "a pool's units are slices of one kind"
FIXED_POOL: Mapping[str, str] = {
    "accelerator": ONE_KIND,
    "topology": ONE_KIND,
    "machineType": ONE_KIND,
    "slicesPerUnit": ONE_KIND,
    "capacity": "a pool's units are bought in one way",
    "reservationName": "a pool's units are bought in one way",
}
ALWAYS_THERE = ("accelerator", "topology")
"""Of these."""
DEFAULTS: Mapping[str | None, str | int] = {
    item.alias: item.default for item in Pool.model_fields.values() if isinstance(item.default, str | int)
}
"""The schema has none (`atoll_operator.crd.schema.without_defaults_in_lists`)."""
NEW_POOL = "add a pool of another name and remove this one"
_SLICE = "(self.accelerator + ' ' + self.topology)"
_MACHINE = "(self.accelerator + ' ' + self.machineType)"


def pool_rules() -> Iterator[Rule]:
    """What the API server refuses of one pool."""
    yield from slice_rules("slicesPerUnit")
    yield _capacity_rule()
    yield rule(
        "(has(self.capacity) && self.capacity == 'Reservation') == has(self.reservationName)",
        "reservationName is needed with capacity Reservation, and only then",
        "capacity",
    )
    for name, reason in FIXED_POOL.items():
        if name not in ALWAYS_THERE:
            yield fixed(name, _cannot_change(name, reason), DEFAULTS.get(name))


def kept_rules() -> Iterator[tuple[str, Rule]]:
    """Fields of a pool that are always there and cannot be changed, and what each has of its own."""
    return ((name, kept(_cannot_change(name, FIXED_POOL[name]))) for name in ALWAYS_THERE)


def slice_rules(field: str) -> Iterator[Rule]:
    """Which slices there are, and how many of them a unit can have; `field` says how many.

    A rule for each kind of mistake and not for each generation: the spec is judged at every write of a status too, and
    a field that a rule reads costs a copy of the schemas of all fields beside it (docs/decisions/0037).
    """
    yield _topology_rule()
    yield from _machine_rules()
    yield _host_rule(field)
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


def _topology_rule() -> Rule:
    """Which slices there are. What is no accelerator has none, and is refused by its enum too."""
    small = [(item.accelerator, topology) for item in GENERATIONS for topology in _small(item)]
    cubes = {item.accelerator: max(machine.cubes for machine in item.machines) for item in GENERATIONS}
    return explained(
        f"{_SLICE} in {_pairs(small)} || ({_of_cubes({name: most for name, most in cubes.items() if most})})",
        "topology",
        "does not exist for the accelerator",
        "self.accelerator",
        {item.accelerator: f"does not exist for {item.accelerator}; {offers(item)}" for item in GENERATIONS},
    )


def _machine_rules() -> Iterator[Rule]:
    """Which machine types there are, what they make, and where one must be named."""
    machines = {item.accelerator: tuple(machine.name for machine in item.machines) for item in GENERATIONS}
    yield explained(
        f"!has(self.machineType) || {_MACHINE} in "
        + _pairs((accelerator, name) for accelerator, names in machines.items() for name in names),
        "machineType",
        "is not one of the accelerator",
        "self.accelerator",
        {name: f"is not one of {name}; one of {', '.join(some)}" for name, some in machines.items()},
    )
    makes: dict[str, tuple[str, ...]] = {}
    lacks: dict[str, tuple[str, ...]] = {}
    for generation in GENERATIONS:
        for machine in generation.machines:
            foreign = tuple(name for name in _small(generation) if name not in machine.topologies)
            if foreign and machine.cubes:
                lacks[machine.name] = foreign
            elif foreign:
                makes[machine.name] = machine.topologies
    yield explained(
        f"!has(self.machineType) || [self.machineType].all(m, m in {lists(makes)} ? self.topology in {lists(makes)}[m]"
        f" : !(m in {lists(lacks)} && self.topology in {lists(lacks)}[m]))",
        "machineType",
        "makes no such slices",
        "self.machineType",
        {name: f"makes slices of topology {', '.join(some)}" for name, some in makes.items()}
        | {name: f"makes no slices of topology {', '.join(some)}" for name, some in lacks.items()},
    )
    ambiguous = {
        (item.accelerator, topology): " or ".join(each.name for each in item.machines if each.makes(topology))
        for item in GENERATIONS
        for topology in item.ambiguous()
    }
    yield explained(
        f"has(self.machineType) || !({_SLICE} in {_pairs(ambiguous)})",
        "topology",
        "machineType is needed, because there are several with this topology",
        _SLICE,
        {
            f"{accelerator} {topology}": f"machineType is needed, because {accelerator} has this topology on {names}"
            for (accelerator, topology), names in ambiguous.items()
        },
    )


def _host_rule(field: str) -> Rule:
    """Several slices are of several hosts each."""
    message = f"{field} must be 1 for slices of one host"
    words = table({item.accelerator: _one_host_words(item) for item in GENERATIONS})
    return {
        **rule(f"!has(self.{field}) || self.{field} == 1 || !({_one_host(GENERATIONS)})", message, field),
        "messageExpression": f"'{message}: ' + {words}[self.accelerator]",
    }


def _capacity_rule() -> Rule:
    """Flex-start is for single hosts."""
    offered = [item for item in GENERATIONS if item.flex_start]
    return explained(
        f"!has(self.capacity) || self.capacity != 'FlexStart' || {_one_host(offered)}",
        "capacity",
        "is not offered for such slices",
        "self.accelerator",
        {
            item.accelerator: f"is offered for slices of one host only: {_one_host_words(item)}"
            if item.flex_start
            else f"is not offered for {item.accelerator}; OnDemand, Spot or Reservation is"
            for item in GENERATIONS
        },
    )


def _one_host(generations: Iterable[Generation]) -> str:
    """Whether it is a slice of these, of one host, as CEL."""
    known = [(item.accelerator, _single(item)) for item in generations]
    topologies = _pairs((accelerator, name) for accelerator, (names, _) in known for name in names)
    machines = _pairs((accelerator, name) for accelerator, (_, names) in known for name in names)
    return f"{_SLICE} in {topologies} || (has(self.machineType) && {_MACHINE} in {machines})"


def _one_host_words(generation: Generation) -> str:
    topologies, machines = _single(generation)
    words = f"of {generation.accelerator} topology {', '.join(topologies)}"
    return f"{words} and machineType {', '.join(machines)}" if machines else words


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of an accelerator's things."""
    return quoted(f"{accelerator} {name}" for accelerator, name in pairs)


def _small(generation: Generation) -> tuple[str, ...]:
    """Topologies but for those of whole cubes."""
    return tuple(dict.fromkeys(name for machine in generation.machines for name in machine.topologies))


def _of_cubes(most: Mapping[str, int]) -> str:
    """Whether a topology is of whole cubes, at most so many of an accelerator; `[x].all` gives its sides a name."""
    chips = "{" + ", ".join(f"'{name}': {cubes * CUBE**3}" for name, cubes in most.items()) + "}"
    return (
        f"self.accelerator in {chips} && self.topology.matches('^[1-9][0-9]*x[1-9][0-9]*x[1-9][0-9]*$') && "
        f"[self.topology.split('x').map(side, int(side))].all(t, t.all(side, side % {CUBE} == 0) && "
        f"t[0] <= t[1] && t[1] <= t[2] && t[2] <= {LONGEST_SIDE} && t[0] * t[1] * t[2] <= {chips}[self.accelerator])"
    )


def _cannot_change(name: str, reason: str) -> str:
    return f"spec.pools cannot be changed in {name}: {reason}; {NEW_POOL}"


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

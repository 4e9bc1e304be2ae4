"""Rules of TPU slices, for a pool and for a unit. `crd/tables.py` makes their tables from `plan/pods/topology.py`."""

from __future__ import annotations

from atoll_runtime.contract.rules import Rule, rule


def slice_rules(slices: str) -> tuple[Rule, ...]:
    """For an object with accelerator, topology and machineType.

    One rule for each kind of mistake: the rules of a spec run at each write of a status too, and each field that a rule
    reads makes the API server copy the schemas of all fields beside it.

    Args:
        slices: name of the field that says how many slices make a unit.
    """
    return (
        rule(
            "(self.accelerator + ' ' + self.topology) in TOPOLOGIES || "
            "(self.accelerator in CUBE_CHIPS && self.topology.matches('^[0-9]+x[0-9]+x[0-9]+$') && "
            "[self.topology.split('x').map(side, int(side))].all(t, t.all(side, side % 4 == 0) && t[0] <= t[1] && "
            "t[1] <= t[2] && t[2] <= 256 && t[0] * t[1] * t[2] <= CUBE_CHIPS[self.accelerator]))",
            "must be a topology of the accelerator",
            "topology",
            says="self.topology + ' does not exist for ' + self.accelerator + ': it has ' + OFFERS[self.accelerator]",
        ),
        rule(
            "[self.accelerator + ' ' + self.topology].all(slice, !has(self.machineType) ? !(slice in AMBIGUOUS) : "
            "slice in TOPOLOGIES ? (slice + ' ' + self.machineType) in MACHINES : "
            "(self.accelerator + ' ' + self.machineType) in CUBE_MACHINES)",
            "must be a machine type of the topology, and be given where there are several",
            "machineType",
            says="'must be a machine type of topology ' + self.topology + ', and be given where there are several; ' + "
            "self.accelerator + ' has ' + OFFERS[self.accelerator]",
        ),
        rule(
            f"!has(self.{slices}) || self.{slices} == 1 || !((self.accelerator + ' ' + self.topology + "
            "(has(self.machineType) ? ' ' + self.machineType : '')) in ONE_HOST)",
            "must be 1 for slices of one host: several slices make one unit only if each has several hosts",
            slices,
        ),
        rule(
            f"!has(self.{slices}) || self.{slices} == 1 || [(self.topology + 'x1').split('x').map(side, int(side))]"
            f".all(t, t[0] * t[1] * t[2] * self.{slices} <= 16384)",
            "must be smaller: a unit has at most 4096 hosts of 4 chips in all its slices",
            slices,
        ),
    )

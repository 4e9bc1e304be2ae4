"""The table of TPU slices, and how they are bought."""

from __future__ import annotations

import pytest
from specs import SHAPES

from atoll_operator.api.sections import Pool
from atoll_operator.plan.pods import topology as tpu
from atoll_operator.plan.run.elastic import capacity

FLAT = {"2x4": 2, "4x4": 4, "4x8": 8, "8x8": 16, "8x16": 32, "16x16": 64}
DEEP = {"2x2x1": 1, "2x2x2": 2, "2x2x4": 4, "2x4x4": 8, "4x4x4": 16, "4x4x8": 32, "4x8x8": 64, "8x8x8": 128}
MACHINES = [
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-1t", 1, "v5litepod", 1, {"1x1": 1}),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-4t", 4, "v5litepod", 1, {"2x2": 1, **FLAT}),
    ("tpu-v5-lite-podslice", "ct5lp-hightpu-8t", 8, "v5litepod", 1, {"2x4": 1}),
    ("tpu-v5-lite-device", "ct5l-hightpu-1t", 1, "v5lite", 1, {"1x1": 1}),
    ("tpu-v5-lite-device", "ct5l-hightpu-4t", 4, "v5lite", 1, {"2x2": 1}),
    ("tpu-v5-lite-device", "ct5l-hightpu-8t", 8, "v5lite", 1, {"2x4": 1}),
    ("tpu-v5p-slice", "ct5p-hightpu-4t", 4, "v5p", 2, DEEP | {"16x20x28": 2240, "4x4x256": 1024}),
    ("tpu-v6e-slice", "ct6e-standard-1t", 1, "v6e", 1, {"1x1": 1}),
    ("tpu-v6e-slice", "ct6e-standard-4t", 4, "v6e", 1, {"2x2": 1, **FLAT}),
    ("tpu-v6e-slice", "ct6e-standard-8t", 8, "v6e", 1, {"2x4": 1}),
    ("tpu7x", "tpu7x-standard-1t", 1, "tpu7x", 2, {"1x1x1": 1}),
    ("tpu7x", "tpu7x-standard-4t", 4, "tpu7x", 2, {**DEEP, "16x24x24": 2304, "4x12x192": 2304}),
]
"""Accelerator, machine type, chips of a host, prefix and cores a chip in `TPU_ACCELERATOR_TYPE`, hosts by topology.

As in xpk 1.13 and 1.16: all 861 shapes that it has of these accelerators were compared with ours on 2026-11-21. What it
has not, such as machines of 8 chips, is as in GKE's cluster autoscaler.
"""
OFFERED = [(generation.accelerator, topology, machine.name) for generation, machine, topology in SHAPES]


@pytest.mark.parametrize(("accelerator", "machine", "chips", "prefix", "cores", "hosts"), MACHINES)
def test_a_slice_has_the_hosts_that_gke_gives_it(accelerator, machine, chips, prefix, cores, hosts) -> None:
    for topology, expected in hosts.items():
        shape = tpu.slice_of(accelerator, topology, machine)
        assert (shape.machine, shape.hosts, shape.chips_per_host) == (machine, expected, chips)
        assert shape.accelerator_type == f"{prefix}-{expected * chips * cores}"


def test_what_is_offered_is_in_the_table_or_of_whole_cubes_as_many_as_xpk_has() -> None:
    listed = {(accelerator, machine): hosts for accelerator, machine, *_, hosts in MACHINES}
    for accelerator, topology, machine in OFFERED:
        cubes = topology.count("x") == 2 and all(int(side) % tpu.CUBE == 0 for side in topology.split("x"))
        assert topology in listed[accelerator, machine] or cubes
    assert len(tpu.generation_of("tpu-v5p-slice").topologies()) == 414
    assert len(tpu.generation_of("tpu7x").topologies()) == 432 + 1  # and 1x1x1, on a machine type of its own


def test_every_slice_has_bounds_that_multiply_to_its_topology() -> None:
    for accelerator, topology, machine in OFFERED:
        shape = tpu.slice_of(accelerator, topology, machine)
        chips, hosts = (tuple(map(int, text.split(","))) for text in (shape.chip_bounds, shape.host_bounds))
        sides = tuple(map(int, topology.split("x")))
        assert tuple(a * b for a, b in zip(chips, hosts, strict=True)) == (*sides, 1)[:3]
        assert hosts[0] * hosts[1] * hosts[2] == shape.hosts
        assert shape.hosts == 1 or shape.chips_per_host == tpu.CHIPS
        assert shape.hosts <= tpu.MAX_HOSTS


WRAPS = [
    ("tpu-v5p-slice", "2x4x4", "false,false,false"), ("tpu-v5p-slice", "4x4x4", "true,true,true"),
    ("tpu7x", "4x4x8", "true,true,true"), ("tpu-v6e-slice", "8x8", "false,false,false"),
    ("tpu-v6e-slice", "8x16", "false,true,false"), ("tpu-v5-lite-podslice", "16x16", "true,true,false"),
]  # fmt: skip


@pytest.mark.parametrize(("accelerator", "topology", "wrap"), WRAPS)
def test_whole_cubes_and_the_sides_of_a_whole_flat_pod_are_rings(accelerator, topology, wrap) -> None:
    assert tpu.slice_of(accelerator, topology).wrap == wrap


IMPOSSIBLE = [
    (("tpu-v9", "2x2"), "one of tpu-v5-lite-podslice"),
    (("tpu-v5p-slice", "4x4x6"), "'4x4x6'.* multiples of 4"),
    (("tpu-v5p-slice", "8x4x4"), "'8x4x4'.* A <= B <= C"),
    (("tpu-v5p-slice", "4x4x260"), "'4x4x260'.* at most 140 cubes"),
    (("tpu7x", "4x4"), "'4x4'.* it has 1x1x1 .*, 2x2x1"),
    (("tpu-v6e-slice", "x"), "'x'.* it has 1x1 .*, 2x2 .*, 2x4"),
    (("tpu-v6e-slice", "2x4"), "'2x4' .* needs a machineType: .*ct6e-standard-4t or ct6e-standard-8t"),
    (("tpu-v6e-slice", "2x2", "ct6e-standard-8t"), "machineType 'ct6e-standard-8t' .* does not exist"),
]


@pytest.mark.parametrize(("shape", "says"), IMPOSSIBLE)
def test_what_cannot_be_is_refused_with_what_can(shape, says) -> None:
    with pytest.raises(ValueError, match=says):
        tpu.slice_of(*shape)


SPOT, FLEX = "cloud.google.com/gke-spot", "cloud.google.com/gke-flex-start"
CAPACITIES = [
    ({}, {}, []),
    ({"capacity": "Spot"}, {SPOT: "true"}, [SPOT]),
    ({"capacity": "FlexStart"}, {FLEX: "true"}, [FLEX]),
    ({"capacity": "Reservation", "reservation_name": "m"}, {"cloud.google.com/reservation-name": "m"}, []),
]


@pytest.mark.parametrize(("changes", "labels", "taints"), CAPACITIES)
def test_a_pool_goes_to_nodes_of_its_capacity_and_tolerates_their_taint(changes, labels, taints) -> None:
    pool = Pool(name="p", accelerator="tpu-v6e-slice", topology="2x2", units=1, **changes)
    found, tolerations = capacity(pool)
    tolerated = [(each.key, each.operator, each.value, each.effect) for each in tolerations]
    assert (found, tolerated) == (labels, [(taint, "Equal", "true", "NoSchedule") for taint in taints])

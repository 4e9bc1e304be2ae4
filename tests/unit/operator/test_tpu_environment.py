"""What the pods of units of one and of several slices are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pod_kinds import all_pods, container, learner_unit, settings, values

from atoll_operator.api.group import LABEL_SLICE
from atoll_operator.plan.pods import gang
from atoll_operator.plan.pods.environment import LIBTPU_ARGUMENTS, tpu_environment
from atoll_operator.plan.pods.topology import GENERATIONS, slice_of
from atoll_operator.plan.unit.unit import UnitObserved
from atoll_runtime.contract import ENV_UNIT, parse_unit

SHAPES = [
    slice_of(generation.accelerator, topology, machine.name)
    for generation in GENERATIONS
    for machine in generation.machines
    for topology in machine.topologies
]


def names_of(hosts: int) -> tuple[str, ...]:
    return tuple(f"u-1-{host}.u.ns.svc" for host in range(hosts))


def v5p(topology: str, slices: int, *, arguments: str = "", **changes: str) -> UnitObserved:
    own = settings(**({LIBTPU_ARGUMENTS: arguments} if arguments else {}))
    given = {"accelerator": "tpu-v5p-slice", "topology": topology, "slices": slices, "name": "r-p-0"}
    return learner_unit(own, 1, **(given | changes))


@given(shape=st.sampled_from(SHAPES), slices=st.integers(1, 64))
def test_each_host_knows_its_place_in_its_slice_and_slices_meet_at_the_first_host(shape, slices) -> None:
    slices = slices if shape.hosts > 1 else 1
    names = names_of(slices * shape.hosts)
    for host in {0, shape.hosts - 1, len(names) // 2, len(names) - 1}:
        found, number = tpu_environment(shape, slices, host, names), host // shape.hosts
        own = found["TPU_WORKER_HOSTNAMES"].split(",")
        assert tuple(own) == names[number * shape.hosts :][: shape.hosts]
        assert own[int(found["TPU_WORKER_ID"])] == names[host]
        assert found["TPU_PROCESS_ADDRESSES"] == ",".join(f"{each}:8471" for each in own)
        between = {name: value for name, value in found.items() if name.startswith("MEGASCALE")}
        assert between == ({} if slices == 1 else {
            "MEGASCALE_NUM_SLICES": str(slices), "MEGASCALE_SLICE_ID": str(number),
            "MEGASCALE_COORDINATOR_ADDRESS": names[0], "MEGASCALE_PORT": "8080",
        })  # fmt: skip
        assert (LIBTPU_ARGUMENTS in found) is (slices > 1)


def test_a_hang_between_slices_ends_the_processes_and_the_administrators_flags_come_last() -> None:
    pod = all_pods(v5p("2x2x2", 2, arguments="--mine=true"))[3]
    assert values(pod)[LIBTPU_ARGUMENTS].split() == [
        "--megascale_error_reporter_abort_on_hang=true",
        "--megascale_error_reporter_abort_on_error=true",
        "--mine=true",
    ]
    alone = all_pods(v5p("2x2x2", 1, arguments="--mine=true"))[1]
    assert values(alone)[LIBTPU_ARGUMENTS] == "--mine=true"


def test_the_pods_of_a_unit_are_numbered_through_and_labelled_by_slice() -> None:
    pods = all_pods(v5p("2x2x4", 3))
    assert [pod["metadata"]["name"] for pod in pods] == [f"r-p-0-1-{host}" for host in range(12)]
    assert [pod["metadata"]["labels"][LABEL_SLICE] for pod in pods] == [*"000011112222"]
    for host, pod in enumerate(pods):
        contract = parse_unit(values(pod)[ENV_UNIT])
        assert (contract.host, contract.hosts) == (host, 12)
        assert contract.coordinator == "r-p-0-1-0.r-p-0.ns.svc:8476"
        ports = [port["containerPort"] for port in container(pod)["ports"]]
        assert 8080 in ports
        assert len(set(ports)) == len(ports)


def test_the_largest_slice_needs_names_that_fit_into_a_variable() -> None:
    gang.check(v5p("16x20x28", 1))
    with pytest.raises(ValueError, match=r"2240 hosts have \d+ characters.*131071.*shorter names"):
        gang.check(v5p("16x20x28", 1, namespace="n" * 40))

"""A unit of two hosts that heals again and again compiles its programs once, and computes the same bit for bit."""

from pathlib import Path

import pytest
from cpu_mesh import all_results, coordinator, start

from atoll_runtime.contract import dump
from atoll_runtime.simulate.blank import unit_contract

WORKER = Path(__file__).with_name("compilation_worker.py")
HOSTS = 2
pytestmark = pytest.mark.timeout(900)  # two processes at a time; a pair takes 3 s alone, 30 s under load


def incarnation(folder):
    """What each host says of its part."""
    with coordinator() as address:
        unit = unit_contract(hosts=HOSTS, coordinator=address, batch=6)
        contracts = [dump(unit.model_copy(update={"host": host})) for host in range(HOSTS)]
        processes = [start(WORKER, contract, folder, devices=2) for contract in contracts]
        return all_results(processes, 200)


def test_healed_units_load_what_all_hosts_can_and_train_as_if_they_had_compiled(tmp_path):
    first = incarnation(tmp_path)
    losses, programs = [host["losses"] for host in first], first[0]["compiled"]
    assert [(host["loaded"], host["compiled"]) for host in first] == [(0, programs)] * HOSTS
    assert [name for name in first[0]["backend"] if "advance" in name], (
        "the step is seen where JAX compiles it"
    )
    again = incarnation(tmp_path)
    assert [host["losses"] for host in again] == losses, "bit for bit"
    assert [(host["loaded"], host["compiled"]) for host in again] == [(programs, 0)] * HOSTS
    assert not [name for host in again for name in host["backend"] if "advance" in name]
    (step,) = (tmp_path / "bucket/cache/versions/shape/host-1").glob("step-*")
    step.write_bytes(step.read_bytes()[:-100])
    mended = incarnation(tmp_path)
    assert [host["losses"] for host in mended] == losses
    assert [(host["loaded"], host["compiled"]) for host in mended] == [(programs - 1, 1)] * HOSTS, (
        "both compile the program that one cannot load, and no other"
    )

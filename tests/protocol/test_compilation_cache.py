"""A unit of two hosts that heals again and again compiles its programs once, and computes the same bit for bit."""

import shutil
from pathlib import Path

import pytest
from cpu_mesh import all_results, coordinator, start

WORKER = Path(__file__).with_name("compilation_worker.py")
HOSTS = 2
HEALS = 3
pytestmark = pytest.mark.timeout(900)  # two processes at a time; a pair takes 3 s alone, 30 s under load


def incarnation(folder):
    """What each host says of its part."""
    with coordinator() as address:
        processes = [start(WORKER, HOSTS, host, address, folder, devices=2) for host in range(HOSTS)]
        return all_results(processes, 200)


@pytest.fixture(scope="module")
def plain():
    """Without a cache."""
    return incarnation("-")


@pytest.fixture(scope="module")
def filled(tmp_path_factory, plain):
    """The bucket after the first incarnation."""
    folder = tmp_path_factory.mktemp("unit")
    first = incarnation(folder)
    assert all(host["loaded"] == 0 and host["compiled"] == plain[0]["compiled"] for host in first)
    assert [host["losses"] for host in first] == [host["losses"] for host in plain]
    return folder


@pytest.fixture
def folder(filled, tmp_path):
    """A copy of its own."""
    return shutil.copytree(filled, tmp_path / "unit")


def all_loaded(hosts, plain):
    for host, before in zip(hosts, plain, strict=True):
        assert host["losses"] == before["losses"], "bit for bit"
        assert (host["loaded"], host["compiled"]) == (before["compiled"], 0)
        assert not [name for name in host["backend"] if "advance" in name], "JAX compiled no step"
    assert [name for name in plain[0]["backend"] if "advance" in name], "which would have been seen"


def test_healed_units_load_everything_and_train_as_if_they_had_compiled(folder, plain):
    for _ in range(HEALS):
        all_loaded(incarnation(folder), plain)


def test_both_hosts_compile_the_program_that_one_cannot_load_and_no_other(folder, plain):
    (step,) = (folder / "bucket/cache/versions/shape/host-1").glob("step-*")
    step.write_bytes(step.read_bytes()[:-100])
    hosts = incarnation(folder)
    assert [host["losses"] for host in hosts] == [host["losses"] for host in plain]
    assert [(host["loaded"], host["compiled"]) for host in hosts] == [(plain[0]["compiled"] - 1, 1)] * HOSTS
    all_loaded(incarnation(folder), plain)

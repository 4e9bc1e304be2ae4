"""A unit of two slices of two hosts, by the contracts that the operator writes, trains as one mesh."""

from pathlib import Path

import numpy as np
import pytest
from compile_cache import kept_programs
from cpu_mesh import all_results, coordinator, start
from pod_kinds import all_pods, learner_unit, values

from atoll_runtime.contract import ENV_UNIT, dump, parse_unit

WORKER = Path(__file__).with_name("slices_worker.py")
HOSTS = 4
pytestmark = pytest.mark.timeout(
    300
)  # five processes that compile: 17 s of CPU, a minute on a loaded machine


def contracts(slices, topology, machine, address):
    """Of the unit's pods; names do not resolve here, so that the coordinator is on this machine."""
    unit = learner_unit(
        number=1, accelerator="tpu-v6e-slice", topology=topology, machine_type=machine, slices=slices
    )
    for pod in all_pods(unit):
        yield parse_unit(values(pod)[ENV_UNIT]).model_copy(update={"coordinator": address})


@pytest.fixture(scope="module")
def results():
    """One host with eight devices, and two slices of two hosts with two devices each."""
    with coordinator() as address:
        (one,) = contracts(1, "2x4", "ct6e-standard-8t", address)
        processes = [start(WORKER, dump(one), devices=8, environment=kept_programs())]
        processes += [
            start(WORKER, dump(contract), devices=2)
            for contract in contracts(2, "2x4", "ct6e-standard-4t", address)
        ]
        return all_results(processes, 240)


def test_hosts_stand_in_the_mesh_slice_by_slice(results):
    assert [each["devices"] for each in results[1:]] == [[0, 2], [2, 4], [4, 6], [6, 8]]


def test_two_slices_train_as_one_mesh(results):
    whole, *hosts = results
    assert [each["losses"] for each in hosts] == [hosts[0]["losses"]] * HOSTS
    assert hosts[0]["losses"] == pytest.approx(whole["losses"], rel=1e-5)


def test_each_host_reads_its_own_rows_of_the_batch(results):
    assert [each["rows"] for each in results[1:]] == [[0, 2], [2, 4], [4, 6], [6, 8]]


def test_the_hosts_parts_of_a_fragment_follow_each_other_in_their_order(results):
    whole, *hosts = results
    for number, expected in enumerate(whole["parts"]):
        parts = [each["parts"][number] for each in hosts]
        assert all(any(part) for part in parts)
        joined = np.concatenate(parts)
        np.testing.assert_allclose(joined, expected, rtol=1e-3, atol=1e-6)

"""The island gives the same figures on any number of devices and hosts."""

from pathlib import Path

import numpy as np
import pytest
from compile_cache import kept_programs
from cpu_mesh import all_results, coordinator, start

from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.checkpoint.units import UnitStore
from atoll_runtime.contract import Dimensions, ModelSpec
from atoll_runtime.model import along, describe, initial
from atoll_runtime.protocol.fragments import build_layout

SIZE = Dimensions(
    layers=2, width=16, heads=2, kv_heads=2, hidden=36, vocabulary=256, experts=2, expert_hidden=8
)
SPEC = ModelSpec(dimensions=SIZE)
FRAGMENTS = 2
"""As in the worker."""
WORKER = Path(__file__).with_name("island_worker.py")
TIMEOUT = 250
pytestmark = pytest.mark.timeout(300)  # three processes that compile: 6 s alone, minutes on a loaded machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bucket of both units, with the checkpoint that they are seeded from."""
    folder, theta = tmp_path_factory.mktemp("bucket"), initial(SPEC)
    GlobalStore(f"file://{folder}", along(SPEC)).save(Cut(0, theta, theta, (0,) * FRAGMENTS))
    return folder


@pytest.fixture(scope="module")
def results(folder):
    """One process with meshes of 1, 2 and 4 devices; two processes of 2 devices that split heads and experts."""
    with coordinator() as address:
        processes = [
            start(WORKER, 1, 0, address, folder, 1, 2, 4, devices=4, environment=kept_programs()),
            start(WORKER, 2, 0, address, folder, devices=2),
            start(WORKER, 2, 1, address, folder, devices=2),
        ]
        return all_results(processes, TIMEOUT)


def test_one_two_and_four_devices_agree(results):
    one, *others = results[0]["runs"]
    for other in others:
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-5)
        assert other["sums"] == pytest.approx(one["sums"], rel=1e-4)


def test_two_processes_train_as_one(results):
    one, first, second = results[0]["runs"][0], results[1]["runs"][0], results[2]["runs"][0]
    assert first["losses"] == second["losses"] == pytest.approx(one["losses"], rel=1e-5)


def test_each_host_extracts_its_own_part_and_no_more(results):
    one, first, second = results[0]["runs"][0], results[1]["runs"][0], results[2]["runs"][0]
    for whole, left, right in zip(one["sums"], first["sums"], second["sums"], strict=True):
        assert left > 0
        assert right > 0
        assert left + right == pytest.approx(whole, rel=1e-4)


def test_hosts_learn_what_the_others_have(results):
    assert results[1]["agreement"]["extremes"] == results[2]["agreement"]["extremes"] == [[0, -1], [1, 0]]


def test_a_single_host_agrees_with_itself(results):
    assert results[0]["agreement"]["extremes"] == [[0, 0], [0, 0]]


def test_what_host_0_says_reaches_the_others_in_64_bits(results):
    assert results[1]["agreement"]["first"] == results[2]["agreement"]["first"] == [2**40, -1]


def test_moments_that_two_hosts_saved_are_those_of_one(results, folder):
    units = UnitStore(f"file://{folder}", "1")
    layout = build_layout(describe(SPEC), FRAGMENTS)
    (one, _), (two, skipped) = (units.newest(name, layout) for name in ("hosts-1", "hosts-2"))
    assert units.saves() == {"hosts-1": {6: 1}, "hosts-2": {6: 2}}
    assert not skipped
    assert one.moments.count == two.moments.count == 6
    for name, value in one.moments.mu.items():
        assert value.any()
        np.testing.assert_allclose(two.moments.mu[name], value, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(two.moments.nu[name], one.moments.nu[name], rtol=1e-3, atol=1e-6)


def test_what_host_0_found_is_on_every_host_bit_for_bit(results):
    odd = np.array([[np.inf, -0.0], [1e-40, -1.5]], np.float32).view(np.int32).tolist()
    assert [each["agreement"]["tensors"] for each in results] == [odd] * 3
    assert [each["agreement"]["found"] for each in results] == ["from host 0"] * 3
    assert [each["agreement"]["rest"] for each in results] == ["done", "done", None]


def test_an_audit_has_one_result_on_any_devices_and_on_all_hosts(results):
    one, *others = results[0]["runs"]
    first, second = results[1]["runs"][0], results[2]["runs"][0]
    assert first["audit"] == second["audit"]
    for other in (*others, first):
        assert 1 < other["audit"] == pytest.approx(one["audit"], rel=1e-5)

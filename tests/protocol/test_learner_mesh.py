"""The island gives the same figures on any number of devices and hosts, also in two slices with the operator's
contracts."""

from pathlib import Path

import numpy as np
import pytest
from compile_cache import kept_programs
from cpu_mesh import all_results, coordinator, start
from pod_kinds import all_pods, learner_unit, values

from atoll_runtime.checkpoint import Cut, GlobalStore
from atoll_runtime.checkpoint.units import UnitStore
from atoll_runtime.contract import ENV_UNIT, Dimensions, ModelSpec, dump, parse_unit
from atoll_runtime.model import along, describe, initial
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.simulate.blank import unit_contract

SIZE = Dimensions(
    layers=2, width=16, heads=2, kv_heads=2, hidden=36, vocabulary=256, experts=2, expert_hidden=8
)
SPEC = ModelSpec(dimensions=SIZE)
FRAGMENTS, BATCH = 2, 6
HOSTS = 4
WORKER = Path(__file__).with_name("island_worker.py")
TIMEOUT = 250
pytestmark = pytest.mark.timeout(300)  # five processes that compile: 10 s alone, minutes on a loaded machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bucket of both units, with the checkpoint that they are seeded from."""
    folder, theta = tmp_path_factory.mktemp("bucket"), initial(SPEC)
    meta = {"fingerprint": build_layout(describe(SPEC), FRAGMENTS).fingerprint}
    GlobalStore(f"file://{folder}", along(SPEC)).save(Cut(0, theta, theta, (0,) * FRAGMENTS, meta))
    return folder


def contracts(address):
    """Contracts of a unit of two slices of two hosts, as the operator writes them. Names do not resolve here, so the
    coordinator is on this machine."""
    unit = learner_unit(
        number=1, accelerator="tpu-v6e-slice", topology="2x4", machine_type="ct6e-standard-4t", slices=2
    )
    changes = {"coordinator": address, "unit": "slices", "batch": BATCH}
    return [parse_unit(values(pod)[ENV_UNIT]).model_copy(update=changes) for pod in all_pods(unit)]


@pytest.fixture(scope="module")
def results(folder):
    """One process with one device, and four hosts in two slices with two devices each."""
    with coordinator() as address:
        alone = dump(unit_contract("alone", batch=BATCH))
        processes = [start(WORKER, alone, folder, devices=1, environment=kept_programs())]
        processes += [start(WORKER, dump(each), folder, devices=2) for each in contracts(address)]
        return all_results(processes, TIMEOUT)


@pytest.fixture(scope="module")
def one(results):
    """The training on one device."""
    return results[0]


@pytest.fixture(scope="module")
def hosts(results):
    """The training of each host of two slices."""
    return results[1:]


def test_hosts_stand_in_the_mesh_slice_by_slice_and_read_their_own_rows_of_the_batch(hosts):
    assert [each["devices"] for each in hosts] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert [each["rows"] for each in hosts] == [[0, 2], [2, 4], [4, 6], [6, 8]], "filled up to eight"


def test_four_hosts_train_as_one_device(one, hosts):
    assert [each["losses"] for each in hosts] == [hosts[0]["losses"]] * HOSTS
    assert hosts[0]["losses"] == pytest.approx(one["losses"], rel=1e-5)


def test_the_hosts_parts_of_a_fragment_follow_each_other_and_none_has_more_than_its_own(one, hosts):
    for number, fragment in enumerate(build_layout(describe(SPEC), FRAGMENTS).fragments):
        parts = [each["parts"][number] for each in hosts]
        assert len({len(part) for part in parts}) == 1 and all(any(part) for part in parts)
        joined, expected = np.concatenate(parts)[: fragment.size], one["parts"][number][: fragment.size]
        assert np.abs(joined - expected).sum() < 1e-3 * np.abs(expected).sum()


def test_moments_that_four_hosts_saved_are_those_of_one(results, folder):
    units = UnitStore(f"file://{folder}", "1", "adamw(mu, nu)")
    layout = build_layout(describe(SPEC), FRAGMENTS)
    (one, _), (four, skipped) = (units.newest(name, layout) for name in ("alone", "slices"))
    assert units.saves() == {"alone": {6: 1}, "slices": {6: HOSTS}, "torn": {8: HOSTS}}
    assert not skipped
    assert one.moments.count == four.moments.count == 6
    for name, value in one.moments.mu.items():
        assert value.any()
        np.testing.assert_allclose(four.moments.mu[name], value, rtol=1e-3, atol=1e-6)
        np.testing.assert_allclose(four.moments.nu[name], one.moments.nu[name], rtol=1e-3, atol=1e-6)


def test_hosts_take_moments_of_which_each_can_read_its_share_and_otherwise_none(hosts):
    whole = "seeded from step 0; moments from step 8 of torn"
    none = "seeded from step 0; torn step 8: another host cannot read it"
    for (told, parts, same), lost in (each["healed"] for each in hosts):
        assert (told, parts > 0, same) == (whole, True, True)
        assert lost == [none, 0, True]


def test_what_host_0_found_is_on_every_host_bit_for_bit_and_all_know_the_extremes(one, hosts, results):
    assert one["extremes"] == [[0, 0], [0, 0]]
    assert [each["extremes"] for each in hosts] == [[[0, -3], [3, 0]]] * HOSTS
    odd = np.array([[np.inf, -0.0], [1e-40, -1.5]], np.float32).view(np.int32).tolist()
    assert [each["tensors"] for each in results] == [odd] * (1 + HOSTS)
    assert [each["asked"] for each in hosts] == [[True, True]] * HOSTS, "the run as host 0 has read it"
    rows = [[[-host, np.inf, 1 + host] for host in range(count)] for count in (1, *[HOSTS] * HOSTS)]
    assert [each["joined"] for each in results] == rows, "each host has one"
    same = dict.fromkeys(["x", "heat", "none", "table"], True)
    assert [each["same"] for each in results] == [same] * (1 + HOSTS)
    assert [each["found"] for each in results] == ["from host 0"] * (1 + HOSTS)
    assert [each["rest"] for each in results] == ["done", "done", None, None, None]


def test_an_audit_has_one_result_on_one_device_and_on_all_hosts(one, hosts):
    assert [each["audit"] for each in hosts] == [hosts[0]["audit"]] * HOSTS
    assert 1 < hosts[0]["audit"] == pytest.approx(one["audit"], rel=1e-5)

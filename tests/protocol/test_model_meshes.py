"""A unit's training is the same on every mesh: fully sharded, by tensor, by expert, on 1 to 8 devices."""

from pathlib import Path

import numpy as np
import pytest
from compile_cache import kept_programs
from cpu_mesh import result, start

WORKER = Path(__file__).with_name("mesh_worker.py")
TIMEOUT = 560
pytestmark = pytest.mark.timeout(600)  # fourteen meshes are compiled once: minutes on a loaded machine


@pytest.fixture(scope="module")
def results():
    """By model, its runs; the first one is on a single device."""
    return result(start(WORKER, devices=8, environment=kept_programs()), TIMEOUT)


MODELS = pytest.mark.parametrize("model", ["dense", "moe", "task"])


@MODELS
def test_losses_agree(results, model):
    one, *others = results[model]
    for other in others:
        assert other["losses"] == pytest.approx(one["losses"], rel=1e-5), other["mesh"]


@MODELS
def test_gradients_agree_tensor_by_tensor(results, model):
    one, *others = results[model]
    for other in others:
        for name, gradient in one["gradients"].items():
            scale = np.abs(gradient).max()
            assert scale > 0, name
            apart = np.abs(np.subtract(other["gradients"][name], gradient)).max()
            assert apart < 1e-4 * scale, (other["mesh"], name)


@MODELS
def test_six_rows_are_filled_up_to_eight_at_most_also_in_parts(results, model):
    for run in results[model]:
        assert run["rows"] <= 8, run["mesh"]


@MODELS
def test_every_fragment_leaves_evenly_split_and_comes_back_whole(results, model):
    for run in results[model]:
        assert run["wrong_fragments"] == [], run["mesh"]


@MODELS
def test_no_device_holds_more_than_its_share_of_a_matrix(results, model):
    for run in results[model]:
        devices, tensor, *_ = run["mesh"]
        idle = tensor if model == "moe" else 1  # the router's choices are not split over the tensor axis
        assert run["largest_share"] <= idle / devices, run["mesh"]

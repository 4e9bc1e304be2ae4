"""A task of the user's own: its tensors, its first values, and every way to get it wrong."""

import subprocess
import sys
import types
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import ModelSpec
from atoll_runtime.model import ModelError, describe, initial
from atoll_runtime.model.tasks import objective

SPEC = ModelSpec(task="mine:Line")


@jax.tree_util.register_dataclass
@dataclass
class Layer:
    """A module as Equinox makes them: a tree by attributes."""

    weight: jax.Array
    bias: jax.Array


class Line:
    """Two layers in a list, and a table of three stacked blocks."""

    def init(self, rng):
        keys = jax.random.split(rng, 2)
        layers = [Layer(jax.random.normal(key, (4, 4), jnp.bfloat16), jnp.zeros(4)) for key in keys]
        return {"layers": layers, "table": jnp.ones((3, 8))}

    def loss(self, params, batch, rng):
        x = batch["tokens"].astype(jnp.float32)
        for layer in params["layers"]:
            x = x @ layer.weight + layer.bias
        return jnp.mean(x) + 0 * jnp.sum(params["table"]) + jax.random.uniform(rng)


@pytest.fixture
def mine(monkeypatch):
    """An importable module; what a test sets there is a task."""
    module = types.ModuleType("mine")
    module.Line = Line
    monkeypatch.setitem(sys.modules, "mine", module)
    return module


def test_names_follow_the_tree(mine):
    shapes = {info.name: info.shape for info in describe(SPEC)}
    assert shapes == {
        "layers/0/weight": (4, 4),
        "layers/0/bias": (4,),
        "layers/1/weight": (4, 4),
        "layers/1/bias": (4,),
        "table": (3, 8),
    }


def test_an_object_serves_as_well_as_its_class(mine):
    mine.line = Line()
    assert describe(ModelSpec(task="mine:line")) == describe(SPEC)


def test_first_values_are_float32_and_follow_the_seed(mine):
    first, again = initial(SPEC), initial(SPEC)
    other = initial(SPEC.model_copy(update={"seed": 7}))
    assert {name: value.shape for name, value in first.items()} == {i.name: i.shape for i in describe(SPEC)}
    for name, value in first.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, again[name])
    assert not np.array_equal(first["layers/0/weight"], other["layers/0/weight"])


def test_the_loss_gets_the_tree_back_and_a_key(mine):
    target, first = objective(SPEC), initial(SPEC)
    batch = {"tokens": jnp.ones((1, 4), jnp.int32)}
    wanted = np.ones(4) @ first["layers/0/weight"] @ first["layers/1/weight"]
    rng = jax.random.key(3)
    found = float(target.loss(first, batch, rng))
    assert found == pytest.approx(wanted.mean() + float(jax.random.uniform(rng)), rel=1e-4)


def test_without_an_evaluation_of_its_own_the_loss_serves_with_the_same_key_each_time(mine):
    target, first = objective(SPEC), initial(SPEC)
    batch = {"tokens": jnp.ones((1, 4), jnp.int32)}
    assert float(target.evaluate(first, batch)) == float(target.evaluate(first, batch))
    Line.evaluate = lambda self, params, batch: jnp.float32(42)
    try:
        assert float(objective(SPEC).evaluate(first, batch)) == 42
    finally:
        del Line.evaluate


def test_axes_say_what_is_cut_by_layer_and_what_is_averaged_directly(mine, monkeypatch):
    axes = {"table": ("layers", "width"), "layers/0/weight": ("vocabulary", "width")}
    monkeypatch.setattr(Line, "axes", axes, raising=False)
    infos = {info.name: info for info in describe(SPEC)}
    assert [name for name, info in infos.items() if info.stacked] == ["table"]
    assert [name for name, info in infos.items() if info.embedding] == ["layers/0/weight"]
    matrices = objective(SPEC).matrices
    assert matrices["layers/0/weight"] and not matrices["table"] and not matrices["layers/0/bias"]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        pytest.param({"axes": {"tabel": ("any",)}}, "axes of 'tabel': there are", id="name"),
        pytest.param({"axes": {"table": ("width",)}}, r"shape \(3, 8\): one for each", id="length"),
        pytest.param({"axes": {"table": ("width", "breadth")}}, "of any, batch, expert_hidden", id="axis"),
        pytest.param({"loss": None}, "no method 'loss'", id="no-loss"),
        pytest.param(
            {"init": lambda self, rng: {"step": jnp.zeros((), jnp.int32)}},
            "'step' is int32; it must be floating",
            id="integer",
        ),
        pytest.param({"init": lambda self, rng: {}}, "init makes no parameters", id="empty"),
        pytest.param(
            {"init": lambda self, rng: {"a": {"b": jnp.zeros(1)}, "a/b": jnp.zeros(1)}},
            "two parameters are named 'a/b'",
            id="twice",
        ),
    ],
)
def test_a_task_that_does_not_fit_is_refused_by_name(mine, monkeypatch, changes, named):
    for attribute, value in changes.items():
        monkeypatch.setattr(Line, attribute, value, raising=False)
    with pytest.raises(ModelError, match=r"model.task: 'mine:Line'.*" + named):
        describe(SPEC)


@pytest.mark.parametrize("task", ["nowhere:Line", "mine:Lane"])
def test_a_task_that_is_not_there_is_refused_with_the_place_where_it_must_be(mine, task):
    with pytest.raises(ModelError, match=f"model.task: '{task}'.*must be in the run's image"):
        describe(ModelSpec(task=task))


def test_a_decoder_is_described_and_begun_without_jax():
    """The syncer's process has no use for it."""
    program = (
        "import sys; from atoll_runtime.contract import ModelSpec; from atoll_runtime.model import describe, initial; "
        "spec = ModelSpec(preset='250k'); describe(spec); initial(spec); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

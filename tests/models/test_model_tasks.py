"""A task of the user's own: its tensors and its first values. Every way to get it wrong: test_model_admission."""

import re
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import check, describe, initial
from atoll_runtime.model.objective import objective

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


def test_loss_with_a_fixed_key_replaces_a_missing_evaluation(mine, monkeypatch):
    target, first = objective(SPEC), initial(SPEC)
    batch = {"tokens": jnp.ones((1, 4), jnp.int32)}
    assert float(target.evaluate(first, batch)) == float(target.evaluate(first, batch))
    monkeypatch.setattr(Line, "evaluate", lambda self, params, batch: jnp.float32(42), raising=False)
    assert float(objective(SPEC).evaluate(first, batch)) == 42


def test_the_equinox_module_of_the_docs_is_a_tree_once_it_is_filtered(mine):
    page = (Path(__file__).resolve().parents[2] / "docs" / "models.md").read_text()
    [code] = re.findall(r"^```python\n(import equinox.*?)^```$", page, re.M | re.S)
    exec(code, vars(mine))
    spec = ModelSpec(task="mine:Wide")
    check(spec, 8, "Stream")
    assert [info.name for info in describe(spec)] == [
        f"layers/{layer}/{name}" for layer in (0, 1) for name in ("weight", "bias")
    ]
    inner = Inner(span(jax.devices()), spec, InnerSpec(), initial(spec), 2, 8)
    rows = np.arange(18, dtype=np.int32).reshape(2, 9)
    assert float(inner.step(rows, 1e-2)) > float(inner.step(rows, 1e-2))


def test_axes_say_what_is_cut_by_layer_and_what_is_averaged_directly(mine, monkeypatch):
    axes = {"table": ("layers", "width"), "layers/0/weight": ("vocabulary", "width")}
    monkeypatch.setattr(Line, "axes", axes, raising=False)
    infos = {info.name: info for info in describe(SPEC)}
    assert [name for name, info in infos.items() if info.stacked] == ["table"]
    assert [name for name, info in infos.items() if info.embedding] == ["layers/0/weight"]
    matrices = objective(SPEC).matrices
    assert matrices["layers/0/weight"] and not matrices["table"] and not matrices["layers/0/bias"]


def test_a_decoder_is_described_and_begun_without_jax():
    """The syncer's process has no use for it."""
    program = (
        "import sys; from atoll_runtime.contract import ModelSpec; from atoll_runtime.model import describe, initial; "
        "spec = ModelSpec(preset='250k'); describe(spec); initial(spec); assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

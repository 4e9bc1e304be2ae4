"""The sample's task in Flax, trained with an optimiser of optax: it learns, is cut into fragments, and heals."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from atoll_runtime.checkpoint.units import Moments
from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.learner.client import host_part
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import describe, initial
from atoll_runtime.model.objective import objective
from atoll_runtime.protocol.fragments import build_layout

SAMPLES = Path(__file__).resolve().parents[2] / "manifests" / "samples"
SAMPLE = yaml.safe_load((SAMPLES / "flax-task.yaml").read_text())["spec"]
MODEL, INNER = ModelSpec.model_validate(SAMPLE["model"]), InnerSpec.model_validate(SAMPLE["inner"])
TEXT = np.frombuffer(b"the walking island goes on, and the others never stop; " * 20, np.uint8).astype(
    np.int32
)
BATCH, LENGTH, RATE = 4, 24, 1e-3
pytestmark = pytest.mark.timeout(400)  # 15 s alone


@pytest.fixture(scope="module", autouse=True)
def task():
    """The sample's folder is on the path, as in the sample's image; and its model is a smaller one."""
    sys.path.insert(0, str(SAMPLES))
    import flax_task

    whole, small = flax_task.Language, flax_task.Language(width=32, layers=1, heads=2, length=64)
    flax_task.Language = lambda: small
    yield
    flax_task.Language = whole
    sys.path.remove(str(SAMPLES))


def rows(random):
    starts = random.integers(0, len(TEXT) - LENGTH - 1, BATCH)
    return np.stack([TEXT[at : at + LENGTH + 1] for at in starts])


def build(theta, moments=None):
    return Inner(span(jax.devices()), MODEL, INNER, theta, BATCH, LENGTH, moments, stream=1)


@pytest.fixture(scope="module")
def trained():
    """After 40 steps: the unit, its first losses, and what it was begun from."""
    first, random = initial(MODEL), np.random.default_rng(0)
    inner = build(first)
    return inner, [float(inner.step(rows(random), RATE)) for _ in range(40)], first


def test_it_learns(trained):
    _, losses, _ = trained
    assert losses[0] == pytest.approx(np.log(256), rel=0.2)
    assert losses[-1] < 0.75 * losses[0]


def test_the_global_model_is_evaluated_without_dropout(trained):
    inner = trained[0]
    tokens = rows(np.random.default_rng(2))
    batch = {"tokens": tokens, "weights": np.ones((BATCH, LENGTH), np.float32)}
    evaluate = jax.jit(objective(MODEL).evaluate)
    assert float(evaluate(inner.theta, batch)) == float(evaluate(inner.theta, batch)) < np.log(256)


def test_its_tensors_are_cut_into_the_samples_fragments_and_come_back(trained):
    inner, _, first = trained
    layout = build_layout(describe(MODEL), SAMPLE["outer"]["fragments"])
    fragments = Fragments(inner.mesh, layout, inner.theta)
    number = next(p for p, each in enumerate(layout.fragments) if each.pieces[0].embedding)
    part = np.zeros(fragments.padded[number], np.float32)
    part[: layout.fragments[number].size] = layout.flatten(first, number)
    back = fragments.receive(inner.theta, number, part)
    for piece in layout.fragments[number].pieces:
        np.testing.assert_array_equal(back[piece.tensor], first[piece.tensor])
    assert not host_part(*fragments.extract(back, number, "float32")).any()
    inner.theta = back


def test_a_healed_unit_steps_as_the_one_that_was_lost_would_have(trained):
    inner, _, _ = trained
    theta, mu = ({name: np.array(value) for name, value in each.items()} for each in (inner.theta, inner.mu))
    assert not inner.nu, "lion has one moment"
    nothing = {name: np.zeros_like(value) for name, value in mu.items()}
    healed = build(theta, Moments(mu, nothing, inner.updates))
    tokens = rows(np.random.default_rng(5))
    assert float(healed.step(tokens, RATE)) == pytest.approx(float(inner.step(tokens, RATE)), rel=1e-6)
    for name, value in inner.theta.items():
        np.testing.assert_allclose(healed.theta[name], value, rtol=1e-5, atol=1e-6)

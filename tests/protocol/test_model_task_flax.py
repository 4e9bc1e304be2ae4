"""The sample's task in Flax, trained with an optimiser of optax: it learns, and is evaluated without dropout."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import initial
from atoll_runtime.model.objective import objective

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
    del sys.modules["flax_task"]
    sys.path.remove(str(SAMPLES))


def rows(random):
    starts = random.integers(0, len(TEXT) - LENGTH - 1, BATCH)
    return np.stack([TEXT[at : at + LENGTH + 1] for at in starts])


@pytest.fixture(scope="module")
def trained():
    """The unit after 40 steps, and their losses."""
    random = np.random.default_rng(0)
    inner = Inner(span(jax.devices()), MODEL, INNER, initial(MODEL), BATCH, LENGTH, stream=1)
    return inner, [float(inner.step(rows(random), RATE)) for _ in range(40)]


def test_it_learns(trained):
    _, losses = trained
    assert losses[0] == pytest.approx(np.log(256), rel=0.2)
    assert losses[-1] < 0.75 * losses[0]


def test_the_global_model_is_evaluated_without_dropout(trained):
    inner = trained[0]
    tokens = rows(np.random.default_rng(2))
    batch = {"tokens": tokens, "weights": np.ones((BATCH, LENGTH), np.float32)}
    evaluate = jax.jit(objective(MODEL).evaluate)
    assert float(evaluate(inner.theta, batch)) == float(evaluate(inner.theta, batch)) < np.log(256)

import jax
import numpy as np
import pytest

from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec, OptimizerSpec
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.model import initial

SPEC = ModelSpec(dimensions=Dimensions(layers=1, width=16, heads=2, kv_heads=1, hidden=16))
BATCH, LENGTH, SEPARATOR = 6, 16, 0
DESCENT = OptimizerSpec(name="sgd")
"""At a learning rate of 1 a step's change is the gradient."""


def a_step(parts, batch=BATCH):
    """The loss, and what the parameters lost."""
    spec = InnerSpec(precision="float32", clip_norm=1e6, optimizer=DESCENT, z_loss=1e-3, accumulation=parts)
    theta = initial(SPEC)
    inner = Inner(span(jax.devices()), SPEC, spec, theta, batch, LENGTH, separator=SEPARATOR)
    tokens = np.random.default_rng(0).integers(1, 256, (batch, LENGTH + 1), np.int32)
    tokens[0, 3:9] = tokens[-1, 7] = SEPARATOR  # documents of unlike lengths: parts count unlike
    start, stop = inner.rows
    loss = float(inner.step(tokens[np.arange(start, stop) % batch], 1.0))
    return loss, {name: theta[name] - np.asarray(value) for name, value in inner.theta.items()}


@pytest.fixture(scope="module")
def at_once():
    return a_step(1)


@pytest.mark.parametrize("parts", [2, 4, 100])
def test_a_batch_in_parts_has_the_loss_and_gradient_of_the_whole(at_once, parts):
    loss, gradient = a_step(parts)
    assert loss == pytest.approx(at_once[0], rel=1e-6)
    for name, value in gradient.items():
        np.testing.assert_allclose(value, at_once[1][name], atol=1e-6, err_msg=name)

"""Splash attention without a TPU: its steps interpreted against plain products, and the program for a TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec
from atoll_runtime.model import attention, describe
from atoll_runtime.model.tasks import objective

BATCH, LENGTH, HEADS, KV_HEADS, HEAD = 2, 256, 4, 2, 128
KERNELS = 3
"""A forward pass and its gradient: one for the values, one for the queries, one for keys and values."""
pytestmark = pytest.mark.timeout(400)  # 10 s alone


@pytest.fixture(scope="module")
def inputs():
    random = np.random.default_rng(0)
    shapes = [(BATCH, LENGTH, heads, HEAD) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    return [jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in shapes]


@pytest.fixture(scope="module")
def segments():
    """A row of two documents, and one of a document and padding."""
    return jnp.asarray([[1] * 100 + [2] * 156, [1] * 200 + [0] * 56], jnp.int32)


def test_its_values_and_gradients_are_those_of_plain_products(inputs, segments):
    def both(attend):
        return jax.jit(jax.value_and_grad(lambda q, k, v: jnp.sum(attend(q, k, v) ** 2), (0, 1, 2)))(*inputs)

    value, gradients = both(lambda q, k, v: attention.splash(q, k, v, segments, None, interpret=True))
    wanted, right = both(lambda q, k, v: attention.dot(q, k, v, segments))
    assert float(value) == pytest.approx(float(wanted), rel=1e-5)
    for found, expected in zip(gradients, right, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)


def test_the_whole_step_of_a_mixture_lowers_for_a_tpu(monkeypatch):
    monkeypatch.setattr(attention, "kernel", lambda *_: "splash")
    size = Dimensions(
        layers=2, width=256, heads=2, kv_heads=1, hidden=256, experts=4, expert_hidden=128, vocabulary=256
    )
    spec = ModelSpec(dimensions=size)
    loss = objective(spec, InnerSpec(precision="bf16", remat="Dots")).loss
    theta = {info.name: jax.ShapeDtypeStruct(info.shape, jnp.float32) for info in describe(spec)}
    batch = {
        "tokens": jax.ShapeDtypeStruct((2, LENGTH + 1), jnp.int32),
        "segments": jax.ShapeDtypeStruct((2, LENGTH + 1), jnp.int32),
        "weights": jax.ShapeDtypeStruct((2, LENGTH), jnp.float32),
    }
    step = jax.jit(jax.grad(lambda theta, batch: loss(theta, batch, jax.random.key(0))))
    program = step.trace(theta, batch).lower(lowering_platforms=("tpu",)).as_text()
    assert program.count("tpu_custom_call") >= KERNELS
    assert "ragged_dot" in program

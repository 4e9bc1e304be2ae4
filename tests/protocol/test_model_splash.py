"""Splash attention without a TPU: its steps interpreted against plain products, and the program for a TPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import Dimensions, InnerSpec, ModelSpec
from atoll_runtime.model import attention, describe
from atoll_runtime.model.objective import objective

BATCH, LENGTH, HEADS, KV_HEADS, HEAD = 2, 256, 4, 2, 128
HIGHEST = jax.lax.Precision.HIGHEST
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


def products(program, of_a_kernel=False):
    """Of each matrix product of a traced program: whether it is a kernel's, its operands' dtype, its precision."""
    for each in program.eqns:
        if each.primitive.name == "dot_general":
            yield of_a_kernel, str(each.invars[0].aval.dtype), each.params["precision"]
        for inner in jax.tree.leaves(list(each.params.values()), is_leaf=lambda it: hasattr(it, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from products(inner, of_a_kernel or each.primitive.name == "pallas_call")


def step_of_a_mixture(monkeypatch, inner, segments):
    """The gradient of its loss, traced for a platform to come. All attention is this kernel's."""
    monkeypatch.setattr(attention, "splashes", lambda *_: True)
    size = Dimensions(
        layers=2, width=256, heads=2, kv_heads=1, hidden=256, experts=4, expert_hidden=128, vocabulary=256
    )
    spec = ModelSpec(dimensions=size)
    target = objective(spec, inner)
    theta = {info.name: jax.ShapeDtypeStruct(info.shape, jnp.float32) for info in describe(spec)}
    batch = {
        "tokens": jax.ShapeDtypeStruct((2, LENGTH + 1), jnp.int32),
        "weights": jax.ShapeDtypeStruct((2, LENGTH), jnp.float32),
    }
    if segments:
        batch["segments"] = batch["tokens"]

    def gradient(theta, batch):
        with target.products():
            return jax.grad(target.loss)(theta, batch, jax.random.key(0))

    return jax.jit(gradient).trace(theta, batch)


@pytest.mark.parametrize("remat", ["None", "Full"])
def test_where_float32_is_asked_for_every_product_of_the_step_is_exact_on_a_tpu_too(monkeypatch, remat):
    """Those of the kernels' backward passes, which JAX traces apart from the loss, are among them."""
    traced = step_of_a_mixture(monkeypatch, InnerSpec(precision="float32", remat=remat), segments=False)
    found = list(products(traced.jaxpr.jaxpr))
    assert {of_a_kernel for of_a_kernel, _, _ in found} == {False, True}
    assert {(dtype, precision) for _, dtype, precision in found} == {("float32", (HIGHEST, HIGHEST))}
    assert "tpu_custom_call" in traced.lower(lowering_platforms=("tpu",)).as_text()


def test_the_whole_step_of_a_mixture_lowers_for_a_tpu(monkeypatch):
    traced = step_of_a_mixture(monkeypatch, InnerSpec(precision="bf16", remat="Dots"), segments=True)
    program = traced.lower(lowering_platforms=("tpu",)).as_text()
    assert program.count("tpu_custom_call") >= KERNELS
    assert "ragged_dot" in program

"""First values, and the decoder's mathematics."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import Dimensions, InnerSpec, MeshSpec, ModelSpec
from atoll_runtime.model import ModelError, attention, describe, fits, flat, initial, resolve, tree
from atoll_runtime.model.decoder import REMAT, Decoder
from atoll_runtime.model.objective import objective

SMALL = Dimensions(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
SPEC = ModelSpec(dimensions=SMALL)
PLAIN = Decoder()
LOSS = jax.jit(PLAIN.loss)
GRADIENT = jax.jit(jax.value_and_grad(PLAIN.loss))
LOGITS = jax.jit(PLAIN.logits)


@pytest.fixture(scope="module")
def batch():
    tokens = np.random.default_rng(0).integers(0, SMALL.vocabulary, (3, 9))
    return {"tokens": jnp.asarray(tokens, jnp.int32), "weights": jnp.ones((3, 8))}


@pytest.fixture(scope="module")
def params():
    return tree(initial(SPEC))


def sized(**changes):
    return ModelSpec(dimensions=SMALL.model_copy(update=changes))


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param(ModelSpec(task="a:b"), "model.task: 'a:b' has no dimensions", id="task"),
        pytest.param(ModelSpec(preset="7t"), "model.preset: '7t'", id="unknown-preset"),
    ],
)
def test_a_model_without_a_known_size_is_refused_by_field(spec, named):
    with pytest.raises(ModelError, match=named):
        resolve(spec)


@pytest.mark.parametrize(
    ("mesh", "named"),
    [
        pytest.param(
            MeshSpec(tensor=4), r"tensor: 4 must divide model.dimensions.kvHeads \(2\)", id="tensor"
        ),
        pytest.param(MeshSpec(expert=2), r"expert: 2 .* \(0\): a dense model takes 1", id="dense"),
    ],
)
def test_a_mesh_that_does_not_divide_the_model_is_refused_by_field(mesh, named):
    with pytest.raises(ModelError, match=named):
        fits(SMALL, mesh)


def test_first_values_depend_on_the_seed_and_on_nothing_else():
    again, other = initial(SPEC), initial(SPEC.model_copy(update={"seed": 1}))
    for name, value in initial(SPEC).items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, again[name])
        assert name.endswith("/norm") or not np.array_equal(value, other[name])


def test_a_separate_head_is_a_tensor_of_its_own_and_averaged_directly():
    infos = {info.name: info for info in describe(sized(tied=False))}
    assert infos["head/table"].shape == (16, 32)
    assert infos["head/table"].embedding
    assert "head/table" not in initial(SPEC)


def test_targets_of_weight_zero_do_not_count(batch, params):
    weights = batch["weights"].at[1].set(0)
    other = batch["tokens"].at[1].set((batch["tokens"][1] + 1) % SMALL.vocabulary)
    some = LOSS(params, {"tokens": batch["tokens"], "weights": weights})
    assert float(some) == float(LOSS(params, {"tokens": other, "weights": weights}))
    assert float(some) != float(LOSS(params, batch))


def test_batch_without_counted_tokens_changes_nothing(batch, params):
    empty = {**batch, "weights": jnp.zeros((3, 8))}
    loss, gradient = GRADIENT(params, empty)
    assert float(loss) == 0
    assert all(not np.any(value) for value in flat(gradient).values())


@pytest.mark.parametrize("name", [name for name in REMAT if name != "None"])
def test_rematerialisation_changes_the_cost_and_not_the_gradient(batch, params, name):
    plain, gradient = GRADIENT(params, batch)
    saved, again = jax.jit(jax.value_and_grad(Decoder(remat=name).loss))(params, batch)
    assert float(saved) == pytest.approx(float(plain), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradient, again)


@pytest.mark.parametrize("tied", [True, False])
def test_bf16_gradients_are_near_those_of_float32_in_every_tensor_however_often_a_token_comes(tied):
    """A sum in bf16 over all places of a token, or over all tokens, stands still from a few hundred of them on."""
    often = np.random.default_rng(0).geometric(0.3, (64, 129)).clip(max=SMALL.vocabulary) - 1
    batch = {"tokens": jnp.asarray(often, jnp.int32), "weights": jnp.ones((64, 128))}
    theta, exact = initial(sized(tied=tied)), Decoder(dtype=jnp.float32).loss
    params, half = tree(theta), Decoder(dtype=jnp.bfloat16).loss
    wanted, found = (flat(jax.jit(jax.grad(loss))(params, batch)) for loss in (exact, half))
    apart = {
        name: np.linalg.norm(found[name] - value) / np.linalg.norm(value) for name, value in wanted.items()
    }
    assert max(apart.values()) < 0.02, apart


def test_the_z_loss_adds_the_mean_square_of_the_normaliser(batch, params):
    logits = LOGITS(params, {"tokens": batch["tokens"][:, :-1]})
    square = float(jnp.mean(jax.nn.logsumexp(logits, axis=-1) ** 2))
    weighted = Decoder(z_loss=0.1)
    added = float(jax.jit(weighted.loss)(params, batch)) - float(LOSS(params, batch))
    assert added == pytest.approx(0.1 * square, rel=1e-4)


def lowered(precision):
    """The precisions of a mixture's products of float32 by float32, and of all, in a program for a TPU."""
    size = SMALL.model_copy(update={"experts": 4, "expert_hidden": 8})
    target = objective(ModelSpec(dimensions=size), InnerSpec(precision=precision))
    theta = {
        info.name: jax.ShapeDtypeStruct(info.shape, jnp.float32)
        for info in describe(ModelSpec(dimensions=size))
    }
    batch = {
        "tokens": jax.ShapeDtypeStruct((3, 9), jnp.int32),
        "weights": jax.ShapeDtypeStruct((3, 8), jnp.float32),
    }
    found = []
    for of in (
        jax.grad(lambda *given: target.loss(*given, jax.random.key(0))),
        lambda *given: target.evaluate(*given),
    ):
        program = jax.jit(of).trace(theta, batch).lower(lowering_platforms=("tpu",)).as_text()
        found += re.findall(r"precision = \[(\w+), \w+\] : \((tensor<\w+>), (tensor<\w+>)\)", program)
    assert found
    return {how for how, *operands in found if all("xf32" in each for each in operands)}, {
        how for how, *_ in found
    }


@pytest.mark.parametrize("precision", ["float32", "Auto"])
def test_float32_products_keep_their_precision_on_tpus(precision):
    """Where nothing is said a TPU multiplies bf16 roundings of it. Auto is float32 in a process on CPUs."""
    assert lowered(precision) == ({"HIGHEST"}, {"HIGHEST"})


def test_among_products_in_bf16_those_of_the_router_are_float32():
    assert lowered("bf16") == ({"HIGHEST"}, {"DEFAULT", "HIGHEST"})


@pytest.mark.parametrize(
    ("platform", "length", "head", "by_kernel"),
    [
        ("cpu", 1024, 128, False),
        ("tpu", 1024, 128, True),
        ("tpu", 1000, 128, False),
        ("tpu", 1024, 64, False),
    ],
)
def test_attention_is_chosen_by_platform_and_by_what_its_blocks_divide(platform, length, head, by_kernel):
    assert attention.splashes(platform, length, head) == by_kernel

"""Sizes, first values, and the decoder's mathematics."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from atoll_runtime.contract import PRESETS, Dimensions, ModelSpec
from atoll_runtime.model import ModelError, decoder, describe, flat, initial, resolve, tree
from atoll_runtime.sync.fragments import build_layout

SMALL = Dimensions(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
SPEC = ModelSpec(dimensions=SMALL)


@pytest.fixture(scope="module")
def batch():
    tokens = np.random.default_rng(0).integers(0, SMALL.vocabulary, (3, 9))
    return {"tokens": jnp.asarray(tokens, jnp.int32), "weights": jnp.ones(3)}


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_has_the_size_of_its_name(preset):
    named = {"k": 1e3, "m": 1e6, "b": 1e9}[preset[-1]] * float(preset[:-1])
    size = sum(int(np.prod(info.shape)) for info in describe(ModelSpec(preset=preset)))
    assert size == pytest.approx(named, rel=0.15)


def test_the_demo_preset_can_be_cut_into_the_default_fragments_evenly():
    layout = build_layout(describe(ModelSpec(preset="1m")), 24)
    sizes = [fragment.size for fragment in layout.fragments]
    assert max(sizes) <= 4 / 3 * max(
        layout.size / 24, max(p.size for f in layout.fragments for p in f.pieces)
    )


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        pytest.param(ModelSpec(), "preset or dimensions", id="neither"),
        pytest.param(ModelSpec(preset="1m", dimensions=SMALL), "preset or dimensions", id="both"),
        pytest.param(ModelSpec(preset="7t"), "model.preset: '7t'", id="unknown-preset"),
        pytest.param(
            ModelSpec(dimensions=SMALL.model_copy(update={"heads": 3})),
            "model.dimensions.width: 16",
            id="odd-heads",
        ),
        pytest.param(
            ModelSpec(dimensions=SMALL.model_copy(update={"kv_heads": 3})),
            "model.dimensions.kvHeads: 3",
            id="odd-kv",
        ),
    ],
)
def test_a_size_that_cannot_be_built_is_refused_by_field(spec, named):
    with pytest.raises(ModelError, match=named):
        resolve(spec)


def test_a_size_of_nothing_is_refused_by_the_contract():
    with pytest.raises(ValidationError, match="layers"):
        Dimensions(layers=0, width=16, heads=2, kv_heads=1, hidden=16)


def test_first_values_depend_on_the_seed_and_on_nothing_else():
    again, other = initial(SPEC), initial(SPEC.model_copy(update={"seed": 1}))
    for name, value in initial(SPEC).items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, again[name])
        assert name.endswith("/norm") or not np.array_equal(value, other[name])


def test_described_shapes_are_those_of_the_first_values():
    assert {info.name: info.shape for info in describe(SPEC)} == {
        k: v.shape for k, v in initial(SPEC).items()
    }


def test_a_separate_head_is_a_tensor_of_its_own_and_averaged_directly():
    infos = {
        info.name: info for info in describe(ModelSpec(dimensions=SMALL.model_copy(update={"tied": False})))
    }
    assert infos["head/table"].shape == (16, 32)
    assert infos["head/table"].embedding
    assert "head/table" not in initial(SPEC)


def test_flat_names_and_the_tree_are_inverse():
    tensors = initial(SPEC)
    assert flat(tree(tensors)).keys() == tensors.keys()
    assert tree(tensors)["layers"]["attention"]["wq"] is tensors["layers/attention/wq"]


@pytest.mark.parametrize("tied", [True, False])
def test_an_untrained_model_is_near_the_uniform_loss(batch, tied):
    spec = ModelSpec(dimensions=SMALL.model_copy(update={"tied": tied}))
    loss = float(decoder.loss(tree(initial(spec)), batch))
    assert loss == pytest.approx(np.log(SMALL.vocabulary), rel=0.2)


def test_a_token_sees_nothing_that_comes_after_it(batch):
    params = tree(initial(SPEC))
    tokens = np.asarray(batch["tokens"])[:, :-1]
    changed = tokens.copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % SMALL.vocabulary
    before, after = decoder.forward(params, tokens), decoder.forward(params, changed)
    np.testing.assert_allclose(before[:, :5], after[:, :5], atol=1e-6)
    assert not np.allclose(before[:, 5:], after[:, 5:], atol=1e-6)


def test_rows_of_weight_zero_do_not_count(batch):
    params = tree(initial(SPEC))
    weights = jnp.array([1.0, 0.0, 1.0])
    alone = {"tokens": batch["tokens"][jnp.array([0, 2])], "weights": jnp.ones(2)}
    some = decoder.loss(params, {**batch, "weights": weights})
    assert float(some) == pytest.approx(float(decoder.loss(params, alone)), rel=1e-5)


def test_grouped_heads_equal_full_heads_with_repeated_keys(batch):
    grouped = initial(SPEC)
    full = dict(grouped)
    for name in ("layers/attention/wk", "layers/attention/wv"):
        full[name] = np.repeat(grouped[name], 2, axis=2)
    assert float(decoder.loss(tree(full), batch)) == pytest.approx(
        float(decoder.loss(tree(grouped), batch)), rel=1e-5
    )


def test_rematerialisation_and_bf16_change_the_cost_and_not_the_model(batch):
    params = tree(initial(SPEC))
    plain, gradient = jax.jit(jax.value_and_grad(decoder.loss))(params, batch)
    again_of = jax.value_and_grad(lambda p, b: decoder.loss(p, b, remat=True))
    saved, again = jax.jit(again_of)(params, batch)
    assert float(saved) == pytest.approx(float(plain), rel=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), gradient, again)
    assert float(decoder.loss(params, batch, dtype=jnp.bfloat16)) == pytest.approx(float(plain), rel=0.01)

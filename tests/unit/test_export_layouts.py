"""Hugging Face's layouts: every value of Θ has a place, and the model that they describe is the trained one."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.contract import Dimensions, ModelSpec
from atoll_runtime.export import ExportError
from atoll_runtime.export.layouts import LAYOUTS
from atoll_runtime.model import describe, tree
from atoll_runtime.model.decoder import Decoder

DENSE = Dimensions(layers=2, width=32, heads=4, kv_heads=2, hidden=48, vocabulary=40)
UNTIED = Dimensions(layers=1, width=24, heads=2, kv_heads=2, hidden=40, vocabulary=40, tied=False)
EXPERTS = Dimensions(
    layers=2, width=32, heads=4, kv_heads=1, hidden=40, vocabulary=40, experts=4, expert_hidden=24
)


def make_theta(spec, seed=0):
    """Random values. No norm is 1 and no scale is the initial one, so that a tensor that is left out is noticed."""
    random = np.random.default_rng(seed)
    theta = {info.name: random.standard_normal(info.shape, np.float32) for info in describe(spec)}
    return {name: 1 + value / 4 if name.endswith("/norm") else value / 4 for name, value in theta.items()}


def exported(layout, spec, theta):
    """Tensors by the layout's names, and its config."""
    plan = LAYOUTS[layout](spec, {name: value.shape for name, value in theta.items()})
    return {entry.name: entry.value(theta.__getitem__) for entry in plan.entries}, plan.config


def logits(weights, config, tokens):
    """Llama and Qwen2-MoE by their definitions and published names: float64 [T, V] of one sequence."""

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T.astype(np.float64) + weights.get(f"{name}.bias", 0)

    def norm(name, x):
        mean = np.mean(x**2, axis=-1, keepdims=True)
        return weights[f"{name}.weight"] * x / np.sqrt(mean + config["rms_norm_eps"])

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    def softmax(x):
        exponents = np.exp(x - x.max(axis=-1, keepdims=True))
        return exponents / exponents.sum(axis=-1, keepdims=True)

    def swiglu(name, x):
        gate = linear(f"{name}.gate_proj", x)
        return linear(f"{name}.down_proj", gate * sigmoid(gate) * linear(f"{name}.up_proj", x))

    def turned(x):  # [T, heads, head]
        frequency = config["rope_theta"] ** (-np.arange(0, head, 2) / head)
        angle = np.tile(np.arange(len(tokens))[:, None] * frequency, 2)[:, None]
        rotated = np.concatenate([-x[..., head // 2 :], x[..., : head // 2]], axis=-1)
        return x * np.cos(angle) + rotated * np.sin(angle)

    def attention(name, x):
        q, k, v = (linear(f"{name}.{each}_proj", x).reshape(len(tokens), -1, head) for each in "qkv")
        each = config["num_attention_heads"] // config["num_key_value_heads"]
        k, v = np.repeat(turned(k), each, axis=1), np.repeat(v, each, axis=1)
        scores = np.einsum("qnh,knh->nqk", turned(q), k) / np.sqrt(head)
        scores = np.where(np.tri(len(tokens), dtype=bool), scores, -np.inf)
        mixed = np.einsum("nqk,knh->qnh", softmax(scores), v).reshape(len(tokens), -1)
        return linear(f"{name}.o_proj", mixed)

    def experts(name, x):
        chances = softmax(linear(f"{name}.gate", x))
        out = sigmoid(linear(f"{name}.shared_expert_gate", x)) * swiglu(f"{name}.shared_expert", x)
        for t, row in enumerate(chances):
            chosen = np.argsort(row)[-config["num_experts_per_tok"] :]
            for expert in chosen:
                share = row[expert] / row[chosen].sum()
                out[t] += share * swiglu(f"{name}.experts.{expert}", x[t])
        return out

    head = config["head_dim"]
    x = weights["model.embed_tokens.weight"][tokens].astype(np.float64)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        x = x + attention(f"{at}.self_attn", norm(f"{at}.input_layernorm", x))
        mlp = experts if config["model_type"] == "qwen2_moe" else swiglu
        x = x + mlp(f"{at}.mlp", norm(f"{at}.post_attention_layernorm", x))
    x = norm("model.norm", x)
    return linear("model.embed_tokens" if config["tie_word_embeddings"] else "lm_head", x)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        pytest.param("llama", DENSE, id="grouped-queries"),
        pytest.param("llama", UNTIED, id="a-head-of-its-own"),
        pytest.param("qwen2-moe", EXPERTS, id="experts"),
    ],
)
def test_the_published_definition_computes_the_same_logits_from_the_export(layout, size):
    spec = ModelSpec(dimensions=size)
    theta = make_theta(spec)
    tokens = np.random.default_rng(1).integers(0, size.vocabulary, 12)
    own = jax.jit(Decoder(experts_per_token=size.experts_per_token).logits)(
        tree(theta), {"tokens": tokens[None].astype(np.int32)}
    )
    published = logits(*exported(layout, spec, theta), tokens)
    assert np.ptp(published) > 1
    np.testing.assert_allclose(own[0], published, atol=2e-5)


@settings(max_examples=50)
@given(st.data())
def test_every_value_of_theta_stands_in_the_export_and_comes_back_from_it(data):
    heads = data.draw(st.sampled_from([1, 2, 4]))
    kv_heads = data.draw(st.sampled_from([n for n in (1, 2, 4) if heads % n == 0]))
    experts = data.draw(st.sampled_from([0, 2, 3]))
    size = Dimensions(
        layers=data.draw(st.integers(1, 3)),
        width=heads * 2 * data.draw(st.integers(4, 6)),
        heads=heads,
        kv_heads=kv_heads,
        hidden=data.draw(st.integers(8, 12)),
        vocabulary=data.draw(st.integers(2, 9)),
        tied=data.draw(st.booleans()),
        experts=experts,
        expert_hidden=5 if experts else 0,
    )
    spec = ModelSpec(dimensions=size)
    theta = make_theta(spec, seed=data.draw(st.integers(0, 9)))
    shapes = {name: value.shape for name, value in theta.items()}
    layout = data.draw(st.sampled_from(["atoll", "qwen2-moe" if experts else "llama"]))
    entries = LAYOUTS[layout](spec, shapes).entries
    assert len({entry.name for entry in entries}) == len(entries)
    back = {name: np.full(shape, np.nan, np.float32) for name, shape in shapes.items()}
    for entry in entries:
        value = entry.value(theta.__getitem__)
        assert value.shape == entry.shape
        if entry.source is not None:
            entry.put(value, back[entry.source])
    for name, value in theta.items():
        np.testing.assert_array_equal(back[name], value)


@pytest.mark.parametrize(
    ("layout", "size", "words"),
    [
        pytest.param("llama", EXPERTS, "neither Llama nor Mixtral has; qwen2-moe", id="experts"),
        pytest.param("qwen2-moe", DENSE, "this model is dense; llama", id="dense"),
    ],
)
def test_a_layout_that_cannot_express_a_model_names_one_that_can(layout, size, words):
    spec = ModelSpec(dimensions=size)
    with pytest.raises(ExportError, match=words):
        exported(layout, spec, make_theta(spec))


def test_a_model_or_tensors_that_the_layout_does_not_know_are_named():
    with pytest.raises(ExportError, match=r"'my\.tasks:Mine' has no dimensions; atoll takes any model"):
        exported("llama", ModelSpec(task="my.tasks:Mine"), {"w": np.zeros(3, np.float32)})
    spec = ModelSpec(dimensions=DENSE)
    theta = make_theta(spec) | {"final/norm": np.ones(3, np.float32)}
    with pytest.raises(ExportError, match="the checkpoint's final/norm are not those of its model"):
        exported("llama", spec, theta)

"""A language model in Flax as the task of a run: see flax-task.yaml. `init` and `loss` are all that Atoll asks for."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import optax
from jax import Array

VOCABULARY = 256
"""Bytes."""


class Block(nn.Module):
    """Attention to what came before, then an MLP."""

    heads: int
    dropout: float

    @nn.compact
    def __call__(self, x: Array, training: bool) -> Array:
        causal = nn.make_causal_mask(x[..., 0])
        y = nn.MultiHeadDotProductAttention(self.heads, name="attention")(nn.RMSNorm()(x), mask=causal)
        x += nn.Dropout(self.dropout, deterministic=not training)(y)
        y = nn.gelu(nn.Dense(4 * x.shape[-1], name="up")(nn.RMSNorm()(x)))
        return x + nn.Dense(x.shape[-1], name="down")(y)


class Language(nn.Module):
    """Logits of the byte that follows each position."""

    width: int = 128
    layers: int = 4
    heads: int = 4
    length: int = 4096
    """Longest sequence."""
    dropout: float = 0.1

    @nn.compact
    def __call__(self, tokens: Array, training: bool) -> Array:
        places = nn.Embed(self.length, self.width, name="places")(jnp.arange(tokens.shape[1]))
        x = nn.Embed(VOCABULARY, self.width, name="bytes")(tokens) + places
        for _ in range(self.layers):
            x = Block(self.heads, self.dropout)(x, training)
        return nn.Dense(VOCABULARY, name="head")(nn.RMSNorm()(x))


class LanguageTask:
    """`module:attribute` may name this class or one object of it."""

    axes = {"bytes/embedding": ("vocabulary", "width")}  # noqa: RUF012
    """By parameter, what its dimensions are: this one is merged by the direct mean. The others are split as can be."""

    def __init__(self, model: Language | None = None) -> None:
        self.model = model or Language()

    def init(self, rng: Array) -> Any:
        """First values."""
        return self.model.init(rng, jnp.zeros((1, 8), jnp.int32), False)["params"]

    def loss(self, params: Any, batch: dict[str, Array], rng: Array) -> Array:
        """Mean cross-entropy over the targets by their weight; rows of weight 0 only fill the batch up."""
        logits = self.model.apply({"params": params}, batch["tokens"][:, :-1], True, rngs={"dropout": rng})
        return self._mean(logits, batch)

    def evaluate(self, params: Any, batch: dict[str, Array]) -> Array:
        """Without dropout."""
        return self._mean(self.model.apply({"params": params}, batch["tokens"][:, :-1], False), batch)

    def _mean(self, logits: Any, batch: dict[str, Array]) -> Array:
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"][:, 1:])
        return jnp.sum(nats * batch["weights"]) / jnp.sum(batch["weights"])

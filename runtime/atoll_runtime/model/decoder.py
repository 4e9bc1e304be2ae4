"""A decoder in pure functions: RMSNorm, rotary positions, grouped-query attention, SwiGLU, and experts beside it.

Array names carry their axes: B batch, T time, D width, N heads, K key-value heads, H head size, F hidden,
V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.data.packing import counted
from atoll_runtime.model import experts
from atoll_runtime.model.attention import attend, positions, rotary, rotate
from atoll_runtime.model.axes import constrain
from atoll_runtime.model.parameters import AXES, flat, tree
from atoll_runtime.model.rules import EXPERT, TENSOR

Params = dict[str, Any]
Batch = dict[str, Array]
"""`tokens` int32 [B, T+1]. `weights` float32 [B, T]: the weight of each target, 0 in rows that only fill the batch.
`segments` int32 [B, T+1], if documents are packed: the document of each token, 1, 2, … along a row, 0 for padding.
"""

NORM_EPSILON = 1e-6
BALANCE_LOSS = 0.01
"""Weight of the load-balance loss (Switch Transformers, section 2.2)."""
ROUTER_Z_LOSS = 0.001
"""Weight of the router's z-loss (ST-MoE, section 3.3)."""

Layer = Callable[..., Any]
REMAT: dict[str, Callable[[Layer], Layer]] = {
    "None": lambda layer: layer,
    "Dots": functools.partial(
        jax.checkpoint, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable
    ),
    "Full": jax.checkpoint,
}
"""Which activations the backward pass recomputes, by the setting's name in the contract."""


@dataclass(frozen=True)
class Decoder:
    """The loss of a model. Sizes other than these fields are read from its parameters."""

    experts_per_token: int = 0
    dtype: Any = jnp.float32
    """Dtype of the matrix products. Parameters, normalisers, router and loss stay float32."""
    remat: str = "None"
    z_loss: float = 0.0
    mesh: Mesh | None = None
    """The mesh on which activations are placed. None: the compiler decides."""

    def loss(self, params: Params, batch: Batch, rng: Array | None = None) -> Array:
        """The training loss: that of `evaluate` plus z-losses and load balance, all means over the same tokens."""
        logits_BTV, weights_BT, routed = self._predict(params, batch)
        loss = _mean(_nats(logits_BTV, batch), weights_BT) + routed
        if self.z_loss:
            loss += self.z_loss * _mean(jnp.square(jax.nn.logsumexp(logits_BTV, axis=-1)), weights_BT)
        return loss

    def evaluate(self, params: Params, batch: Batch) -> Array:
        """Mean cross-entropy of the next token in nats, weighted by the targets' weights."""
        logits_BTV, weights_BT, _ = self._predict(params, batch)
        return _mean(_nats(logits_BTV, batch), weights_BT)

    def logits(self, params: Params, inputs: Batch) -> Array:
        """Float32 [B, T, V] of the token that follows each of `tokens` [B, T] (with `segments` [B, T], if any)."""
        return self._forward(params, inputs, jnp.ones(inputs["tokens"].shape))[0]

    def _predict(self, params: Params, batch: Batch) -> tuple[Array, Array, Array]:
        """Logits, the weight of each target, and the weighted losses of the routers."""
        inputs: Batch = {key: batch[key][:, :-1] for key in ("tokens", "segments") if key in batch}
        weights_BT = counted(batch)
        logits_BTV, routed = self._forward(params, inputs, weights_BT)
        return logits_BTV, weights_BT, routed

    def _forward(self, params: Params, inputs: Batch, weights_BT: Array) -> tuple[Array, Array]:
        segments_BT = inputs.get("segments")
        table_VD = params["embedding"]["table"]
        x_BTD = self._place(self._embed(table_VD, inputs["tokens"]))
        at = jnp.arange(x_BTD.shape[1]) if segments_BT is None else positions(segments_BT)
        rotation = rotary(at, params["layers"]["attention"]["wq"].shape[-1])

        def layer(x_BTD: Array, weights: Params) -> tuple[Array, Array]:
            weights = tree({name: self._gather(f"layers/{name}", w, 1) for name, w in flat(weights).items()})
            x_BTD = self._place(x_BTD + self._attention(weights["attention"], x_BTD, rotation, segments_BT))
            y_BTD = normalise(x_BTD, weights["mlp"]["norm"])
            x_BTD += mlp(weights["mlp"], y_BTD)
            losses = jnp.zeros(())
            if "experts" in weights:
                routes = experts.route(
                    weights["experts"]["router"], y_BTD, self.experts_per_token, weights_BT
                )
                x_BTD += experts.mix(weights["experts"], y_BTD, routes, self.mesh)
                losses = BALANCE_LOSS * routes.balance + ROUTER_Z_LOSS * routes.z
            return self._place(x_BTD), losses

        x_BTD, losses_L = jax.lax.scan(REMAT[self.remat](layer), x_BTD, params["layers"])
        x_BTD = normalise(x_BTD, params["final"]["norm"])
        head_DV = (
            self._gather("head/table", params["head"]["table"])
            if "head" in params
            else self._gather("embedding/table", table_VD).T
        )
        logits_BTV = jnp.matmul(x_BTD, head_DV, preferred_element_type=jnp.float32)
        return self._place(logits_BTV, "vocabulary"), jnp.mean(losses_L)

    def _embed(self, table_VD: Array, tokens_BT: Array) -> Array:
        """The tokens' rows, rounded after the lookup. A row's gradient is a sum over all places of its token, and in
        bf16 such a sum stops growing after a few hundred terms."""
        whole_VD = constrain(self.mesh, table_VD, AXES["embedding/table"], (TENSOR,))
        return whole_VD[tokens_BT].astype(self.dtype)

    def _attention(
        self, weights: Params, x_BTD: Array, rotation: tuple[Array, Array], segments_BT: Array | None
    ) -> Array:
        """Causal self-attention of one layer, before the residual sum."""
        y_BTD = normalise(x_BTD, weights["norm"])
        q_BTNH = rotate(jnp.einsum("BTD,DNH->BTNH", y_BTD, weights["wq"]), rotation)
        k_BTKH = rotate(jnp.einsum("BTD,DKH->BTKH", y_BTD, weights["wk"]), rotation)
        v_BTKH = jnp.einsum("BTD,DKH->BTKH", y_BTD, weights["wv"])
        mixed_BTNH = attend(q_BTNH, k_BTKH, v_BTKH, segments_BT, self.mesh)
        return jnp.einsum("BTNH,NHD->BTD", mixed_BTNH, weights["wo"])

    def _gather(self, name: str, weight: Array, skip: int = 0) -> Array:
        """A parameter as a layer uses it: in the products' dtype, and split only along the tensor and expert axes."""
        if not name.endswith(("/router", "/norm")):
            weight = weight.astype(self.dtype)
        along = (TENSOR, EXPERT) if "experts" in AXES[name] else (TENSOR,)
        return constrain(self.mesh, weight, AXES[name][skip:], along)

    def _place(self, x: Array, last: str = "whole") -> Array:
        return constrain(self.mesh, x, ("batch", "time", last))


def normalise(x_BTD: Array, scale_D: Array) -> Array:
    """RMSNorm in float32 throughout, because the gradient of `scale_D` is also a sum over all tokens."""
    exact_BTD = x_BTD.astype(jnp.float32)
    mean_BT1 = jnp.mean(jnp.square(exact_BTD), axis=-1, keepdims=True)
    return (exact_BTD * jax.lax.rsqrt(mean_BT1 + NORM_EPSILON) * scale_D).astype(x_BTD.dtype)


def mlp(weights: Params, y_BTD: Array) -> Array:
    """SwiGLU of one layer, before the residual sum."""
    gate_BTF = jax.nn.silu(y_BTD @ weights["gate"])
    out_BTD: Array = (gate_BTF * (y_BTD @ weights["up"])) @ weights["down"]
    return out_BTD


def _nats(logits_BTV: Array, batch: Batch) -> Array:
    """Cross-entropy of each target."""
    hit_BT1 = jnp.take_along_axis(logits_BTV, batch["tokens"][:, 1:, None], axis=-1)
    return jax.nn.logsumexp(logits_BTV, axis=-1) - hit_BT1[..., 0]


def _mean(values_BT: Array, weights_BT: Array) -> Array:
    """Weighted mean; 0 if all weights are 0."""
    total = jnp.sum(weights_BT)
    return jnp.sum(values_BT * weights_BT) / jnp.where(total > 0, total, 1)

"""Layouts of an export: names and shapes of its tensors, and which part of Θ each one holds.

The layouts of Hugging Face's `transformers` compute the same as Atoll's decoder. Llama has the same definition: rotary
positions rotate the two halves of a head, RMSNorm multiplies by its gain, and key-value head n serves the N/K query
heads from n·N/K on. Only matrices are transposed, with outputs first.

In a model with experts a layer also has an MLP for every token, which Mixtral lacks. Qwen2-MoE has it behind a gate.
With weights of zero the gate is sigmoid(0) = ½, and doubling the MLP's last matrix compensates for it. Both are exact.
The biases of q, k and v are zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll_runtime.contract import Dimensions, ModelSpec
from atoll_runtime.model import ModelError, resolve
from atoll_runtime.model.attention import ROTARY_BASE
from atoll_runtime.model.decoder import NORM_EPSILON
from atoll_runtime.model.parameters import AXES, shapes

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of Θ's tensors by flat name."""


class ExportError(Exception):
    """An export that cannot be made or read; the message names the option, file or tensor."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of an export."""

    name: str
    shape: tuple[int, ...]
    source: str | None
    """Flat name of the tensor of Θ that holds it. None: zeros, which are not in Θ."""
    at: tuple[int, ...] = ()
    """Leading indices of the part, such as layer and expert."""
    transposed: bool = False
    """Stored as [outputs, inputs]; Θ has inputs first."""
    factor: float = 1.0
    """A power of two, so that multiplication is exact."""

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def value(self, tensor: Callable[[str], np.ndarray]) -> np.ndarray:
        """The entry's float32 value. `tensor` returns a tensor of Θ by flat name."""
        if self.source is None:
            return np.zeros(self.shape, np.float32)
        part = np.asarray(tensor(self.source)[self.at])
        value = part.reshape(self.shape[::-1]).T if self.transposed else part
        return value if self.factor == 1 else value * np.float32(self.factor)

    def put(self, value: np.ndarray, source: np.ndarray) -> None:
        """The inverse of `value`: writes the values into Θ."""
        part = value.T if self.transposed else value
        source[self.at] = part.reshape(source[self.at].shape).astype(np.float32) / np.float32(self.factor)


@dataclass(frozen=True, slots=True)
class Plan:
    """All tensors of one model in a layout."""

    entries: tuple[Entry, ...]
    """Ordered by tensor of Θ, so that each is read once."""
    config: Mapping[str, Any] | None = None
    """`config.json` without dtype and context. None: the layout has no such file."""


SHARED = {
    "embedding/table": "model.embed_tokens",
    "layers/attention/norm": "model.layers.{0}.input_layernorm",
    "layers/attention/wq": "model.layers.{0}.self_attn.q_proj",
    "layers/attention/wk": "model.layers.{0}.self_attn.k_proj",
    "layers/attention/wv": "model.layers.{0}.self_attn.v_proj",
    "layers/attention/wo": "model.layers.{0}.self_attn.o_proj",
    "layers/mlp/norm": "model.layers.{0}.post_attention_layernorm",
    "final/norm": "model.norm",
    "head/table": "lm_head",
}
LLAMA = SHARED | {
    "layers/mlp/gate": "model.layers.{0}.mlp.gate_proj",
    "layers/mlp/up": "model.layers.{0}.mlp.up_proj",
    "layers/mlp/down": "model.layers.{0}.mlp.down_proj",
}
QWEN2_MOE = SHARED | {
    "layers/mlp/gate": "model.layers.{0}.mlp.shared_expert.gate_proj",
    "layers/mlp/up": "model.layers.{0}.mlp.shared_expert.up_proj",
    "layers/mlp/down": "model.layers.{0}.mlp.shared_expert.down_proj",
    "layers/experts/router": "model.layers.{0}.mlp.gate",
    "layers/experts/gate": "model.layers.{0}.mlp.experts.{1}.gate_proj",
    "layers/experts/up": "model.layers.{0}.mlp.experts.{1}.up_proj",
    "layers/experts/down": "model.layers.{0}.mlp.experts.{1}.down_proj",
}
"""Names by those of Θ; {0} is the layer, {1} the expert."""


def llama(model: ModelSpec, found: Shapes) -> Plan:
    """`LlamaForCausalLM`, for a dense decoder. Raises `ExportError` for another model."""
    size = _decoder(model, found, "llama")
    if size.experts:
        raise ExportError(
            "layout llama: this model has experts beside the MLP of each layer, which neither Llama nor Mixtral has; "
            "qwen2-moe says the same mathematics, atoll takes any model"
        )
    return Plan(
        tuple(_entries(LLAMA, found)),
        _config(size, "LlamaForCausalLM", "llama", attention_bias=False, mlp_bias=False),
    )


def qwen2_moe(model: ModelSpec, found: Shapes) -> Plan:
    """`Qwen2MoeForCausalLM`, for a mixture of experts. Raises `ExportError` for another model."""
    size = _decoder(model, found, "qwen2-moe")
    if not size.experts:
        raise ExportError("layout qwen2-moe: this model is dense; llama is its layout")
    entries = [*_entries(QWEN2_MOE, found, {"layers/mlp/down": 2.0}), *_zeros(size)]
    config = _config(
        size,
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        shared_expert_intermediate_size=size.hidden,
        moe_intermediate_size=size.expert_hidden,
        num_experts=size.experts,
        num_experts_per_tok=size.experts_per_token,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
        use_sliding_window=False,
    )
    return Plan(tuple(entries), config)


def _decoder(model: ModelSpec, found: Shapes, layout: str) -> Dimensions:
    try:
        size = resolve(model)
    except ModelError as error:
        raise ExportError(f"layout {layout}: {error}; atoll takes any model") from error
    wanted = shapes(size)
    odd = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if odd:
        raise ExportError(f"layout {layout}: the checkpoint's {', '.join(odd)} are not those of its model")
    return size


def _entries(names: Mapping[str, str], found: Shapes, factors: Mapping[str, float] = {}) -> Iterator[Entry]:
    for source, shape in found.items():
        leading = sum(axis in ("layers", "experts") for axis in AXES[source])
        axes, lengths = AXES[source][leading:], shape[leading:]
        matrix = len(axes) > 1 and source != "embedding/table"
        if matrix:  # either the inputs or the outputs are width
            inputs = math.prod(lengths[:-1]) if axes[-1] == "width" else lengths[0]
            lengths = (math.prod(lengths) // inputs, inputs)
        for at in np.ndindex(shape[:leading]):
            name = f"{names[source].format(*at)}.weight"
            yield Entry(name, tuple(lengths), source, at, matrix, factors.get(source, 1.0))


def _zeros(size: Dimensions) -> Iterator[Entry]:
    """Tensors of Qwen2-MoE that Atoll's decoder does not have."""
    head = size.width // size.heads
    for layer in range(size.layers):
        yield Entry(f"model.layers.{layer}.mlp.shared_expert_gate.weight", (1, size.width), None)
        for which, heads in (("q", size.heads), ("k", size.kv_heads), ("v", size.kv_heads)):
            yield Entry(f"model.layers.{layer}.self_attn.{which}_proj.bias", (heads * head,), None)


def _config(size: Dimensions, architecture: str, model_type: str, **own: Any) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": size.width,
        "intermediate_size": size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.width // size.heads,
        "vocab_size": size.vocabulary,
        "rope_theta": ROTARY_BASE,
        "rms_norm_eps": NORM_EPSILON,
        "hidden_act": "silu",
        "tie_word_embeddings": size.tied,
        "bos_token_id": None,
        "eos_token_id": None,
    } | own


def plain(_: ModelSpec, found: Shapes) -> Plan:
    """Atoll's own layout: Θ by flat name, layers stacked, for any model and any task."""
    return Plan(tuple(Entry(name, shape, name) for name, shape in found.items()))


LAYOUTS: dict[str, Callable[[ModelSpec, Shapes], Plan]] = {
    "atoll": plain,
    "llama": llama,
    "qwen2-moe": qwen2_moe,
}
"""Each raises `ExportError` for a model that it cannot express."""

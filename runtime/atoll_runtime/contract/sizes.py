"""The size of a model: its dimensions, and the presets that users name."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from atoll_runtime.contract.rules import WHOLE, cel, checked, rule
from atoll_runtime.contract.section import Section


class Dimensions(Section):
    """Size of a decoder: dense, or with routed experts beside the MLP of each layer."""

    model_config = checked(
        rule("self.width % (2 * self.heads) == 0", "must be an even multiple of heads", "width"),
        rule("self.heads % self.kvHeads == 0", "must be a multiple of kvHeads", "heads"),
        rule(
            "(self.experts == 0) == (self.expertHidden == 0)",
            "must be given with experts, and only then",
            "expertHidden",
        ),
        rule(
            "self.experts == 0 || self.expertsPerToken <= self.experts",
            "must be at most experts",
            "expertsPerToken",
        ),
    )

    layers: Annotated[int, Field(ge=1, le=512), cel(WHOLE)]
    """Decoder layers."""
    width: Annotated[int, Field(ge=8, le=65536)]
    """Width of the residual stream. An even multiple of `heads`."""
    heads: Annotated[int, Field(ge=1, le=1024), cel(WHOLE)]
    """Query heads of attention."""
    kv_heads: Annotated[int, Field(ge=1, le=1024), cel(WHOLE)]
    """Heads of keys and values, each shared by a group of query heads. A divisor of `heads`."""
    hidden: Annotated[int, Field(ge=8, le=262144), cel(WHOLE)]
    """Width of the gated MLP of each layer."""
    vocabulary: Annotated[int, Field(ge=2, le=1048576)] = 256
    """Tokens of the vocabulary. At least as many as in the data set."""
    tied: bool = True
    """Whether the head is the transpose of the embedding."""
    experts: Annotated[int, Field(ge=0, le=4096), cel(WHOLE)] = 0
    """Routed experts of each layer, beside the MLP of `hidden` that every token passes. 0 means a dense model."""
    experts_per_token: Annotated[int, Field(ge=1, le=64)] = 2
    """Experts that each token passes. At most `experts`."""
    expert_hidden: Annotated[int, Field(ge=0, le=262144), cel(WHOLE)] = 0
    """Width of one expert. Required with `experts`."""


SIZES: dict[str, Dimensions] = {
    "250k": Dimensions(layers=5, width=64, heads=4, kv_heads=2, hidden=192),
    "1m": Dimensions(layers=5, width=128, heads=4, kv_heads=2, hidden=384),  # the demo's
    "10m": Dimensions(layers=6, width=384, heads=6, kv_heads=2, hidden=1024),
    "35m": Dimensions(layers=12, width=512, heads=8, kv_heads=2, hidden=1536),
    "125m": Dimensions(layers=20, width=768, heads=12, kv_heads=4, hidden=2048),
    "350m": Dimensions(layers=32, width=1024, heads=8, kv_heads=4, hidden=2560),
    "1b": Dimensions(layers=22, width=2048, heads=16, kv_heads=4, hidden=5632),
    "2b": Dimensions(layers=24, width=2560, heads=20, kv_heads=4, hidden=8192),
    "5b": Dimensions(layers=32, width=3584, heads=28, kv_heads=4, hidden=11264),
    "9b": Dimensions(layers=40, width=4096, heads=32, kv_heads=8, hidden=14336),
    "12b": Dimensions(layers=40, width=5120, heads=40, kv_heads=8, hidden=15360),
    "moe-1m": Dimensions(layers=4, width=96, heads=4, kv_heads=2, hidden=192, experts=8, expert_hidden=64),
    "moe-10m": Dimensions(layers=8, width=256, heads=4, kv_heads=2, hidden=256, experts=8, expert_hidden=128),
    "moe-125m": Dimensions(
        layers=16, width=512, heads=8, kv_heads=4, hidden=512, experts=16, expert_hidden=256
    ),
    "moe-1b": Dimensions(
        layers=16, width=1024, heads=8, kv_heads=4, hidden=2048, experts=32, expert_hidden=512
    ),
    "moe-12b": Dimensions(
        layers=24, width=2048, heads=16, kv_heads=4, hidden=4096, experts=64, expert_hidden=1152
    ),
}
"""Presets with a byte vocabulary and the head tied to the embedding. Names tell all parameters, to within 15 %.

From 350m on every width is a multiple of 256 and heads have 128 elements, to suit a TPU's matrix unit.
"""
PRESETS = tuple(SIZES)
"""Names of `ModelSpec.preset`."""

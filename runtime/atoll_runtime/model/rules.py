"""Where each logical axis may lie on a unit's mesh: one table for parameters, activations and batches, without JAX."""

from __future__ import annotations

from collections.abc import Sequence

FSDP, EXPERT, TENSOR = "fsdp", "expert", "tensor"
MESH = (FSDP, EXPERT, TENSOR)
"""The mesh's axes, outermost first: those that talk most are the nearest neighbours."""
ROWS = (FSDP, EXPERT)
"""Over which the rows of a batch are split."""

RULES: tuple[tuple[str, str], ...] = (
    ("batch", FSDP),
    ("batch", EXPERT),
    ("experts", EXPERT),
    ("heads", TENSOR),
    ("kv_heads", TENSOR),
    ("hidden", TENSOR),
    ("expert_hidden", TENSOR),
    ("vocabulary", TENSOR),
    *((axis, along) for along in ROWS for axis in ("width", "vocabulary", "hidden", "expert_hidden", "head")),
    *(("any", along) for along in MESH),
)
"""Logical axis → mesh axis, in order of preference. A rule counts for the first dimension of that name that the chips
along the mesh axis divide; each mesh axis splits one dimension of a tensor. So parameters are split over all chips.
What no rule names (`layers`, along which the scan goes, `scale`, `choices`) is whole everywhere; `any` is a dimension
of which nothing is known.
"""


def first_split(axes: Sequence[str]) -> int | None:
    """The dimension along which a unit's hosts split a parameter, where its length can be divided."""
    preferred = [logical for logical, physical in RULES if physical == FSDP]
    return min(
        (at for at, axis in enumerate(axes) if axis in preferred),
        default=None,
        key=lambda at: preferred.index(axes[at]),
    )

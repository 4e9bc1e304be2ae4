"""The mesh axes that may split each logical axis: one table for parameters, activations and batches, without JAX."""

from __future__ import annotations

from collections.abc import Sequence

FSDP, EXPERT, TENSOR = "fsdp", "expert", "tensor"
MESH = (FSDP, EXPERT, TENSOR)
"""The mesh's axes, outermost first. Chips along the last axis communicate most and are the nearest neighbours."""
ROWS = (FSDP, EXPERT)
"""The mesh axes over which the rows of a batch are split."""

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
"""Logical axis → mesh axis, in order of preference. A rule applies to the first dimension of that name with a length
that the number of chips along the mesh axis divides. Each mesh axis splits one dimension of a tensor, so parameters are
split over all chips. Axes without a rule (`layers`, along which the scan goes, `scale`, `choices`) are not split.
`any` is a dimension of unknown meaning.
"""


def first_split(axes: Sequence[str]) -> int | None:
    """The dimension along which a unit's hosts split a parameter, if its length can be divided."""
    preferred = [logical for logical, physical in RULES if physical == FSDP]
    return min(
        (at for at, axis in enumerate(axes) if axis in preferred),
        default=None,
        key=lambda at: preferred.index(axes[at]),
    )

"""The models of the proof, and how much each trains in a step."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.contract import PRESETS, Dimensions, ModelSpec


@dataclass(frozen=True)
class Size:
    """A model, and what all learners together read in a step."""

    model: ModelSpec
    length: int
    """Tokens of a sequence."""
    sequences: int
    """Of all learners in one step."""
    fragments: int
    """P: as many as the model's pieces can fill evenly, at most the default 24."""
    warmup: int
    """Steps of the inner warm-up."""
    rates: tuple[float, ...]
    """Inner learning rates: the tuning budget, the same for every method and number of learners. Each is twice the one
    before. (30k at 0.064, tried on 2026-11-22: worse for three methods of four; for two learners better with the seed
    of the tuning, and 2 to 4 % worse with each of those that count.)"""
    together: int | None = None
    """Sequences that are computed at a time, where a whole batch does not fit into a core's cache: twice as quick."""

    def parts(self, batch: int) -> int:
        """Of a learner's batch."""
        return 1 if self.together is None else max(1, batch // self.together)

    @property
    def tokens(self) -> int:
        """Of all learners in one step."""
        return self.length * self.sequences


def _small(fragments: int, warmup: int, rates: tuple[float, ...], dimensions: Dimensions) -> Size:
    return Size(ModelSpec(dimensions=dimensions), 64, 128, fragments, warmup, rates, together=4)


SIZES: dict[str, Size] = {
    "30k": _small(
        8, 20, (8e-3, 16e-3, 32e-3), Dimensions(layers=2, width=32, heads=2, kv_heads=1, hidden=96)
    ),
    "90k": _small(
        12, 40, (4e-3, 8e-3, 16e-3, 32e-3), Dimensions(layers=3, width=48, heads=4, kv_heads=2, hidden=128)
    ),
    "250k": Size(ModelSpec(preset="250k"), 64, 128, 24, 40, (4e-3, 8e-3, 16e-3), together=4),
    "1m": Size(ModelSpec(preset="1m"), 128, 128, 24, 60, (4e-3, 8e-3, 16e-3), together=4),
    "moe-50k": _small(
        8,
        20,
        (8e-3, 16e-3, 32e-3),
        Dimensions(layers=2, width=32, heads=2, kv_heads=1, hidden=48, experts=4, expert_hidden=32),
    ),
    "moe-120k": _small(
        12,
        40,
        (8e-3, 16e-3, 32e-3),
        Dimensions(layers=3, width=48, heads=4, kv_heads=2, hidden=64, experts=4, expert_hidden=48),
    ),
}
"""Up to 250k 8 Ki tokens a step, so that sizes compare at equal tokens; a learner of eight reads 1 Ki of them. With
fewer its own noise hides what the merge does (the pilot: 28 % above data-parallel with 256, 14 % with 2 Ki)."""

ACCELERATOR = ("35m", "125m", "350m", "1b", "moe-125m")
"""Presets for an accelerator: 512-token sequences, 256 Ki tokens a step."""
SIZES |= {
    name: Size(ModelSpec(preset=name), 512, 512, 24, 200, (1e-3, 2e-3, 4e-3))
    for name in ACCELERATOR
    if name in PRESETS
}

"""The models of the proof, and how much each trains in a step."""

from __future__ import annotations

from dataclasses import dataclass

from atoll_runtime.contract import Dimensions, ModelSpec


@dataclass(frozen=True)
class Size:
    """A model, and how much all learners together read in a step."""

    model: ModelSpec
    length: int
    """Tokens of a sequence."""
    sequences: int
    """Of all learners in one step."""
    fragments: int
    """P: as many as the model's pieces fill evenly, at most the default of 24."""
    warmup: int
    """Steps of the inner warm-up."""
    rates: tuple[float, ...]
    """Inner learning rates that the tuning tries, the same for every method and number of learners. Each is twice the
    one before. (30k was also tried with 0.064, on 2026-11-22. It was worse for three methods of four. For two learners
    it was better with the seed of the tuning, and 2 to 4 % worse with each seed that counts.)"""
    together: int | None = None
    """Sequences that are computed at a time if a whole batch does not fit into a core's cache. Twice as fast."""

    def parts(self, batch: int) -> int:
        """The number of parts in which a learner's batch is computed."""
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
"""Sizes up to 250k read 8 Ki tokens a step, so that they compare at equal tokens. One of eight learners reads 1 Ki of
them. With fewer, a learner's noise hides the effect of the merge (pilot: 28 % above data-parallel training with 256
tokens, 14 % with 2 Ki)."""

SIZES |= {
    name: Size(ModelSpec(preset=name), 512, 512, 24, 200, (1e-3, 2e-3, 4e-3))
    for name in ("35m", "125m", "350m", "1b", "moe-125m")
}
"""Presets for an accelerator: 512-token sequences, 256 Ki tokens a step."""

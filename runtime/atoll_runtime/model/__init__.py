"""The dense decoder: its sizes, its tensors by flat name, and (in `decoder`) the loss in JAX."""

from atoll_runtime.model.parameters import describe, flat, initial, tree
from atoll_runtime.model.presets import ModelError, resolve

__all__ = ["ModelError", "describe", "flat", "initial", "resolve", "tree"]

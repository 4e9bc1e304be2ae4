"""What is trained: sizes, tensors by flat name, and (in `decoder` and `tasks`) the loss in JAX."""

from atoll_runtime.model.parameters import check, describe, flat, initial, tree
from atoll_runtime.model.presets import ModelError, fits, resolve

__all__ = ["ModelError", "check", "describe", "fits", "flat", "initial", "resolve", "tree"]

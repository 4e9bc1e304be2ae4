"""The trained model: sizes, tensors by flat name, and (in `objective`) the loss in JAX."""

from atoll_runtime.model.model import along, axes_of, check, describe, initial
from atoll_runtime.model.parameters import flat, tree
from atoll_runtime.model.presets import ModelError, fits, resolve

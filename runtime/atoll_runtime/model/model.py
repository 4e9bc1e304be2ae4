"""The model that `spec.model` names, the decoder or a user's task: its tensors and their initial values.

Every function raises `ModelError` for a model that cannot be used; see `resolve`, and for a task `Admitted`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll_runtime.contract import ModelSpec
from atoll_runtime.model import parameters
from atoll_runtime.model.presets import ModelError, resolve
from atoll_runtime.model.rules import first_split
from atoll_runtime.protocol.fragments import TensorInfo

if TYPE_CHECKING:
    from atoll_runtime.model.admission import Admitted


def describe(spec: ModelSpec) -> list[TensorInfo]:
    """The tensors as the protocol partitions them. A task's `init` is only traced, so no device is used."""
    if spec.task is None:
        return parameters.describe(parameters.AXES, parameters.shapes(resolve(spec)))
    own = _admitted(spec.task)
    return parameters.describe(own.axes, own.shapes)


def axes_of(spec: ModelSpec) -> parameters.Axes:
    """The logical axes of each tensor by flat name."""
    if spec.task is not None:
        return _admitted(spec.task).axes
    return {name: parameters.AXES[name] for name in parameters.shapes(resolve(spec))}


def along(spec: ModelSpec) -> dict[str, int]:
    """The dimension along which a unit's hosts split each tensor, if any."""
    found = {name: first_split(each) for name, each in axes_of(spec).items()}
    return {name: at for name, at in found.items() if at is not None}


def check(spec: ModelSpec, length: int, packing: str, trained: bool = True) -> None:
    """Traces the computations of a user's task, which `describe` does not. A decoder needs no further check.

    Args:
        length: tokens of an example.
        packing: of the data, as in the contract.
        trained: also trace the loss and its gradient, not only the evaluation.
    """
    if spec.task is not None:
        _admitted(spec.task).check(length, packing == "Documents", trained)


def initial(spec: ModelSpec) -> dict[str, np.ndarray]:
    """Initial values, float32. The decoder's are the same for a seed on every machine."""
    if spec.task is None:
        return parameters.initial(resolve(spec), spec.seed)
    return _admitted(spec.task).initial(spec.seed)


def _admitted(path: str) -> Admitted:
    """Admits a task. Only this needs JAX; the syncer of a decoder and a planner on a laptop run without it."""
    try:
        from atoll_runtime.model.admission import admit
    except ImportError as error:
        raise ModelError(f"model.task: {path!r} needs JAX: {error}; install atoll[runtime]") from error
    return admit(path)

"""What a unit trains: the built-in decoder, or a task of the user's own, by its parameters' flat names.

A task's parameters may be any tree of floating arrays: nested dicts of Flax, the arrays of an Equinox module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.model import parameters
from atoll_runtime.model.admission import admit, told
from atoll_runtime.model.decoder import Batch, Decoder
from atoll_runtime.model.presets import fits, resolve
from atoll_runtime.sync.fragments import TensorInfo

REMAT_FROM = 100_000_000
"""Parameters from which on `remat: Auto` computes a layer's activations again instead of keeping them."""

Tensors = Mapping[str, Array]
"""By flat name."""
Loss = Callable[[Tensors, Batch, Array], Array]
"""Of parameters, a batch and a key: a mean by the targets' weights, a scalar."""


class Task(Protocol):
    """What `spec.model.task: module:attribute` names, or makes when it is called without arguments.

    Neither the import nor that call may compute with JAX: the hosts of a unit join one another only after it.
    Besides, a task may have

    - `evaluate(params, batch)`: the loss on held-out data; without it, `loss` with a fixed key;
    - `axes`: flat name → what each dimension is, by the names in `atoll_runtime.model.axes.RULES`. A tensor whose first
      one is `layers` is cut into fragments by layer; one that has a `vocabulary` is merged by the direct mean.
    """

    def init(self, rng: Array) -> Any:
        """First values, float32 or to be so; called under `jit`, on the syncer's CPU."""

    def loss(self, params: Any, batch: Batch, rng: Array) -> Array:
        """Mean over the batch by its `weights` (see `Batch`), a scalar; rows of weight 0 only fill the batch up."""


@dataclass(frozen=True)
class Objective:
    """A loss of parameters by flat name, and where these lie on the mesh."""

    loss: Loss
    evaluate: Callable[[Tensors, Batch], Array]
    axes: parameters.Axes

    @property
    def matrices(self) -> dict[str, bool]:
        """Which tensors have two dimensions or more in each layer; these alone decay."""
        return {name: len(each) - each.count("layers") > 1 for name, each in self.axes.items()}


def objective(spec: ModelSpec, inner: InnerSpec | None = None, mesh: Mesh | None = None) -> Objective:
    """What is trained, as `inner` says, on `mesh`.

    Raises:
        ModelError: it cannot be built, or not be split over the mesh; names the field.
    """
    inner = inner or InnerSpec()
    if spec.task is not None:
        own = admit(spec.task)
        return Objective(own.loss, own.evaluate, own.axes)
    size = resolve(spec)
    fits(size, inner.mesh)
    count = sum(int(np.prod(shape)) for shape in parameters.shapes(size).values())
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    bf16 = inner.precision == "bf16" or (inner.precision == "Auto" and platform != "cpu")
    remat = inner.remat if inner.remat != "Auto" else "Full" if count >= REMAT_FROM else "None"
    decoder = Decoder(
        experts_per_token=size.experts_per_token,
        dtype=jnp.bfloat16 if bf16 else jnp.float32,
        remat=remat,
        z_loss=inner.z_loss,
        mesh=mesh,
    )
    return Objective(
        loss=lambda theta, batch, rng: decoder.loss(parameters.tree(theta), batch, rng),
        evaluate=lambda theta, batch: decoder.evaluate(parameters.tree(theta), batch),
        axes={name: parameters.AXES[name] for name in parameters.shapes(size)},
    )


def describe(spec: ModelSpec) -> list[TensorInfo]:
    """A task's tensors as the protocol cuts them. Only traced: no device is touched.

    Raises:
        ModelError: see `admit`.
    """
    assert spec.task is not None
    own = admit(spec.task)
    return [  # a scalar has no first axis
        TensorInfo(name, own.shapes[name], stacked=each[:1] == ("layers",), embedding="vocabulary" in each)
        for name, each in own.axes.items()
    ]


def check(path: str, length: int, packed: bool, trained: bool) -> None:
    """Raises `ModelError`: see `admit` and `Admitted.check`."""
    admit(path).check(length, packed, trained)


def initial(spec: ModelSpec) -> dict[str, np.ndarray]:
    """A task's first values, float32, made on the CPU.

    Raises:
        ModelError: `init`, which could be traced, fails when it computes.
    """
    assert spec.task is not None
    own = admit(spec.task)
    with told(spec.task, "init"), jax.default_device(jax.local_devices(backend="cpu")[0]):
        leaves = jax.tree.leaves(jax.jit(own.task.init)(jax.random.key(spec.seed)))
        return {name: np.asarray(leaf, np.float32) for name, leaf in zip(own.shapes, leaves, strict=True)}

"""The loss that a unit trains, of parameters by flat name: that of the built-in decoder or of a user's task."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.model import parameters
from atoll_runtime.model.admission import admit
from atoll_runtime.model.decoder import Batch, Decoder
from atoll_runtime.model.model import axes_of
from atoll_runtime.model.presets import fits, resolve

REMAT_FROM = 100_000_000
"""With at least this many parameters, `remat: Auto` recomputes a layer's activations instead of keeping them."""

Tensors = Mapping[str, Array]
"""Arrays by flat name."""
Loss = Callable[[Tensors, Batch, Array], Array]
"""Maps parameters, a batch and a key to a scalar: a mean weighted by the targets' weights."""


@dataclass(frozen=True)
class Objective:
    """A loss of parameters by flat name, and the logical axes that place them on the mesh."""

    loss: Loss
    evaluate: Callable[[Tensors, Batch], Array]
    axes: parameters.Axes
    products: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Context in which to trace a gradient of `loss`, because a kernel's own backward pass is traced separately."""

    @property
    def matrices(self) -> dict[str, bool]:
        """Whether each tensor has two or more dimensions in a layer. Only these have weight decay."""
        return {name: len(each) - each.count("layers") > 1 for name, each in self.axes.items()}


def objective(spec: ModelSpec, inner: InnerSpec | None = None, mesh: Mesh | None = None) -> Objective:
    """The objective of a model, with the settings of `inner`, on `mesh`. Raises `ModelError` naming the field if the
    model cannot be built or split over the mesh."""
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
    # By default a TPU rounds float32 matrices to bf16 before it multiplies them.
    products = contextlib.nullcontext if bf16 else functools.partial(jax.default_matmul_precision, "highest")

    def loss(theta: Tensors, batch: Batch, rng: Array) -> Array:
        with products():
            return decoder.loss(parameters.tree(theta), batch, rng)

    def evaluate(theta: Tensors, batch: Batch) -> Array:
        with products():
            return decoder.evaluate(parameters.tree(theta), batch)

    return Objective(loss, evaluate, axes_of(spec), products)

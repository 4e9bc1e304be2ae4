"""What a unit trains: a loss of parameters by flat name, of the built-in decoder or of a task of the user's own."""

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
"""Parameters from which on `remat: Auto` computes a layer's activations again instead of keeping them."""

Tensors = Mapping[str, Array]
"""By flat name."""
Loss = Callable[[Tensors, Batch, Array], Array]
"""Of parameters, a batch and a key: a mean by the targets' weights, a scalar."""


@dataclass(frozen=True)
class Objective:
    """A loss of parameters by flat name, and where these lie on the mesh."""

    loss: Loss
    evaluate: Callable[[Tensors, Batch], Array]
    axes: parameters.Axes
    products: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    """Under which a gradient of `loss` is traced: a kernel's own backward pass is traced apart from it."""

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
    # Of float32 matrices a TPU multiplies bf16 roundings where nothing is said.
    products = contextlib.nullcontext if bf16 else functools.partial(jax.default_matmul_precision, "highest")

    def loss(theta: Tensors, batch: Batch, rng: Array) -> Array:
        with products():
            return decoder.loss(parameters.tree(theta), batch, rng)

    def evaluate(theta: Tensors, batch: Batch) -> Array:
        with products():
            return decoder.evaluate(parameters.tree(theta), batch)

    return Objective(
        loss=loss,
        evaluate=evaluate,
        axes=axes_of(spec),
        products=products,
    )

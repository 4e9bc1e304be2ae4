"""What a unit trains: the built-in decoder, or a task of the user's own, by its parameters' flat names.

A task's parameters may be any tree of floating arrays: nested dicts of Flax, the arrays of an Equinox module.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from atoll_runtime.contract import InnerSpec, ModelSpec
from atoll_runtime.model import axes, parameters
from atoll_runtime.model.decoder import Batch, Decoder
from atoll_runtime.model.presets import ModelError, fits, resolve
from atoll_runtime.sync.fragments import TensorInfo

REMAT_FROM = 100_000_000
"""Parameters from which on `remat: Auto` computes a layer's activations again instead of keeping them."""
WHOLE = ("layers", "scale")
"""Names of dimensions that no rule splits."""

Tensors = Mapping[str, Array]
"""By flat name."""
Loss = Callable[[Tensors, Batch, Array], Array]
"""Of parameters, a batch and a key: a mean by the targets' weights, a scalar."""


class Task(Protocol):
    """What `spec.model.task: module:attribute` names, or makes when it is called without arguments.

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
        return _own(spec.task)
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
        ModelError: see `load`; a parameter that is not floating, or axes that do not fit.
    """
    assert spec.task is not None
    task = load(spec.task)
    shapes, _ = _structure(task, spec.task)
    known = _axes(task, shapes, spec.task)
    return [
        TensorInfo(name, shape, stacked=known[name][0] == "layers", embedding="vocabulary" in known[name])
        for name, shape in shapes.items()
    ]


def initial(spec: ModelSpec) -> dict[str, np.ndarray]:
    """A task's first values, float32, made on the CPU."""
    assert spec.task is not None
    task = load(spec.task)
    names = list(_structure(task, spec.task)[0])
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        leaves = jax.tree.leaves(jax.jit(task.init)(jax.random.key(spec.seed)))
    return {name: np.asarray(leaf, np.float32) for name, leaf in zip(names, leaves, strict=True)}


def load(path: str) -> Task:
    """The task at `module:attribute`.

    Raises:
        ModelError: there is no such module or attribute, or it lacks `init` or `loss`.
    """
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        where = "it must be in the run's image, on PYTHONPATH, and so where the run is simulated"
        raise ModelError(f"model.task: {path!r}: {error}; {where}") from error
    if callable(found) and (isinstance(found, type) or not hasattr(found, "loss")):
        found = found()
    for method in ("init", "loss"):
        if not callable(getattr(found, method, None)):
            raise ModelError(
                f"model.task: {path!r} has no method {method!r}: see atoll_runtime.model.tasks.Task"
            )
    task: Task = found
    return task


def _own(path: str) -> Objective:
    task = load(path)
    shapes, structure = _structure(task, path)

    def tree(theta: Tensors) -> Any:
        return jax.tree.unflatten(structure, [theta[name] for name in shapes])

    evaluate = getattr(task, "evaluate", None) or (
        lambda params, batch: task.loss(params, batch, jax.random.key(0))
    )
    return Objective(
        loss=lambda theta, batch, rng: task.loss(tree(theta), batch, rng),
        evaluate=lambda theta, batch: evaluate(tree(theta), batch),
        axes=_axes(task, shapes, path),
    )


def _structure(task: Task, path: str) -> tuple[dict[str, tuple[int, ...]], Any]:
    """Shapes by flat name, in the order of the leaves, and the tree's structure."""
    tree = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    leaves, structure = jax.tree.flatten_with_path(tree)
    shapes: dict[str, tuple[int, ...]] = {}
    for keys, leaf in leaves:
        name = jax.tree_util.keystr(keys, simple=True, separator="/")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ModelError(f"model.task: {path!r}: parameter {name!r} is {leaf.dtype}; it must be floating")
        if name in shapes:
            raise ModelError(f"model.task: {path!r}: two parameters are named {name!r}")
        shapes[name] = tuple(leaf.shape)
    if not shapes:
        raise ModelError(f"model.task: {path!r}: init makes no parameters")
    return shapes, structure


def _axes(task: Task, shapes: Mapping[str, tuple[int, ...]], path: str) -> dict[str, tuple[str, ...]]:
    """What the task says, checked; `any` for each dimension of the tensors of which it says nothing."""
    given: Mapping[str, tuple[str, ...]] = getattr(task, "axes", {})
    known = {logical for logical, _ in axes.RULES} | {*WHOLE}
    for name, each in given.items():
        if name not in shapes:
            raise ModelError(f"model.task: {path!r}: axes of {name!r}: there are {', '.join(shapes)}")
        if len(each) != len(shapes[name]) or not known.issuperset(each):
            raise ModelError(
                f"model.task: {path!r}: axes of {name!r}: {each!r} for the shape {shapes[name]}: one for each "
                f"dimension is wanted, of {', '.join(sorted(known))}"
            )
    return {name: tuple(given.get(name, ("any",) * len(shape))) for name, shape in shapes.items()}

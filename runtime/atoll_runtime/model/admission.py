"""Checks a user's task before it is used: imports, constructs and traces it. Errors name the field and the remedy.

Nothing is computed. Without this check the same error would be a traceback at every restart.
"""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from atoll_runtime.model.decoder import Batch
from atoll_runtime.model.presets import ModelError
from atoll_runtime.model.rules import RULES
from atoll_runtime.model.tasks import Task

WHOLE = ("layers", "scale")
"""Names of dimensions that are never split over devices."""
LONGEST = 600
"""Most characters quoted from a library's error, because a pod's termination message has 4096 bytes."""
REMEDY = {
    "import": "the module must be in the run's image, on PYTHONPATH, and so where the run is simulated, and be "
    "imported without an error",
    "construction": "a class or a function is called without arguments and returns the task",
    "init": "init(rng) must return a tree of floating arrays; of an Equinox module, eqx.filter(module, eqx.is_array)",
    "axes": "axes must be a mapping of flat names, each to one name for each dimension",
    "loss": "loss(params, batch, rng) must return a scalar that is floating and has a gradient",
    "evaluate": "evaluate(params, batch) must return a floating scalar, as loss does",
}
"""The remedy for an error, by the step at which it occurs."""


@dataclass(frozen=True)
class Admitted:
    """A constructed task, and the parameters that its `init` makes."""

    path: str
    task: Task
    shapes: dict[str, tuple[int, ...]]
    """By flat name, in the order of the leaves."""
    structure: Any
    axes: dict[str, tuple[str, ...]]
    """The task's axes; `any` for each dimension of tensors without axes."""

    def loss(self, theta: Mapping[str, Array], batch: Batch, rng: Array) -> Array:
        """The loss of parameters by flat name."""
        return self.task.loss(self._tree(theta), batch, rng)

    def evaluate(self, theta: Mapping[str, Array], batch: Batch) -> Array:
        """The task's evaluation; if it has none, its loss with a fixed key."""
        own = getattr(self.task, "evaluate", None)
        params = self._tree(theta)
        found: Array = self.task.loss(params, batch, jax.random.key(0)) if own is None else own(params, batch)
        return found

    def initial(self, seed: int) -> dict[str, np.ndarray]:
        """Initial values, float32, computed on the CPU. Raises `ModelError` if `init` fails although it could be
        traced."""
        with model_errors(self.path, "init"), jax.default_device(jax.local_devices(backend="cpu")[0]):
            leaves = jax.tree.leaves(jax.jit(self.task.init)(jax.random.key(seed)))
            return {
                name: np.asarray(leaf, np.float32) for name, leaf in zip(self.shapes, leaves, strict=True)
            }

    def check(self, length: int, packed: bool, trained: bool = True) -> None:
        """Traces the computations for one row of `length` tokens.

        Args:
            packed: documents are separated by the batch's `segments`.
            trained: also trace the gradient, not only the evaluation.

        Raises:
            ModelError: it cannot be traced, or is not a floating scalar.
        """
        theta = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in self.shapes.items()}
        batch = {
            "tokens": jax.ShapeDtypeStruct((1, length + 1), jnp.int32),
            "weights": jax.ShapeDtypeStruct((1, length), jnp.float32),
        }
        if packed:
            batch["segments"] = batch["tokens"]
        if trained:
            with model_errors(self.path, "loss"):
                gradient = jax.grad(lambda *given: scalar(self.loss(*given)))
                jax.eval_shape(gradient, theta, batch, jax.eval_shape(jax.random.key, 0))
        own = getattr(self.task, "evaluate", None)
        if own or not trained:
            with model_errors(self.path, "evaluate" if own else "loss"):
                jax.eval_shape(lambda *given: scalar(self.evaluate(*given)), theta, batch)

    def _tree(self, theta: Mapping[str, Array]) -> Any:
        return jax.tree.unflatten(self.structure, [theta[name] for name in self.shapes])


def admit(path: str) -> Admitted:
    """Imports and constructs the task at `module:attribute`; `Admitted.check` checks its loss. Raises `ModelError` if
    that fails, or if the task lacks a method or has invalid parameters or axes."""
    task = _made(path)
    shapes, structure = _structure(task, path)
    with model_errors(path, "axes"):
        return Admitted(path, task, shapes, structure, _axes(task, shapes, path))


@contextmanager
def model_errors(path: str, what: str) -> Iterator[None]:
    """Turns any error of the user's code, and SystemExit, into a `ModelError` that names the task and the step."""
    try:
        yield
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        words = _short(f"{type(error).__name__}: {error}")
        raise ModelError(
            f"model.task: {path!r}: {what}: {words}{_place(error, path)}; {REMEDY[what]}"
        ) from error


def scalar(value: Any) -> Any:
    """Returns `value` if it is a floating scalar, else raises `TypeError`."""
    if not jax.tree_util.all_leaves([value]):
        raise TypeError(f"it returned a {type(value).__name__}")
    if jnp.shape(value) or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
        raise TypeError(f"it returned {jnp.result_type(value)} of the shape {jnp.shape(value)}")
    return value


def _short(text: str) -> str:
    """The beginning and the end of a long error. The end has the cause when JAX quotes a callback's traceback."""
    words = " ".join(text.split())
    return words if len(words) <= LONGEST else f"{words[: LONGEST // 2]} … {words[-LONGEST // 2 :]}"


def _place(error: BaseException, path: str) -> str:
    """The last line of the task's own file in the traceback."""
    name = path.partition(":")[0].rpartition(".")[2]
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if PurePath(f.filename).name == f"{name}.py"
    ]
    return f" ({name}.py, line {frames[-1].lineno})" if frames else ""


def _made(path: str) -> Task:
    module, _, attribute = path.partition(":")
    with model_errors(path, "import"):
        found = getattr(importlib.import_module(module), attribute)
    with model_errors(path, "construction"):
        if callable(found) and (isinstance(found, type) or not hasattr(found, "loss")):
            found = found()
    for method in ("init", "loss", "evaluate"):
        with model_errors(path, method):
            given = getattr(found, method, None)
        if not callable(given) and not (method == "evaluate" and given is None):
            raise ModelError(
                f"model.task: {path!r} has no method {method!r}, but {given!r}; {REMEDY[method]}: "
                "see atoll_runtime.model.tasks.Task"
            )
    task: Task = found
    return task


def _structure(task: Task, path: str) -> tuple[dict[str, tuple[int, ...]], Any]:
    """Shapes by flat name, in the order of the leaves, and the tree's structure."""
    with model_errors(path, "init"):
        tree = jax.eval_shape(lambda: task.init(jax.random.key(0)))
    leaves, structure = jax.tree.flatten_with_path(tree)
    shapes: dict[str, tuple[int, ...]] = {}
    for keys, leaf in leaves:
        name = jax.tree_util.keystr(keys, simple=True, separator="/")
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ModelError(f"model.task: {path!r}: parameter {name!r} is {leaf.dtype}; it must be floating")
        if 0 in leaf.shape:
            raise ModelError(
                f"model.task: {path!r}: parameter {name!r} has the shape {tuple(leaf.shape)}, and so no elements; "
                "a checkpoint cannot hold it: leave it out of what init returns"
            )
        if name in shapes:
            raise ModelError(f"model.task: {path!r}: two parameters are named {name!r}")
        shapes[name] = tuple(leaf.shape)
    if not shapes:
        raise ModelError(f"model.task: {path!r}: init makes no parameters")
    return shapes, structure


def _axes(task: Task, shapes: Mapping[str, tuple[int, ...]], path: str) -> dict[str, tuple[str, ...]]:
    given: Mapping[str, tuple[str, ...]] = getattr(task, "axes", {})
    if not isinstance(given, Mapping):
        raise TypeError(f"{given!r} is no mapping")
    known = sorted({logical for logical, _ in RULES} | {*WHOLE})
    for name, each in given.items():
        if name not in shapes:
            raise ModelError(f"model.task: {path!r}: axes of {name!r}: there are {', '.join(shapes)}")
        listed = isinstance(each, (tuple, list))
        if not listed or len(each) != len(shapes[name]) or not all(one in known for one in each):
            raise ModelError(
                f"model.task: {path!r}: axes of {name!r}: {each!r} for the shape {shapes[name]}: one for each "
                f"dimension is wanted, of {', '.join(known)}"
            )
    return {name: tuple(given.get(name, ("any",) * len(shape))) for name, shape in shapes.items()}

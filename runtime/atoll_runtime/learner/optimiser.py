"""The inner optimiser: AdamW, or another one of optax by name and arguments. It gets its learning rate at each step.

A unit saves up to two tensors for each parameter and counts of steps. If an optimiser's state has more, such as
Adafactor's factored moments, a healed unit begins with a new state and a short warm-up.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from atoll_runtime.contract import OPTIMIZERS, InnerSpec, OptimizerSpec

SAVED = 2
"""Tensors for each parameter that a unit saves."""
LONGEST = 300
"""Maximum number of characters of an optax error that a message repeats."""
MASKS = ("mask", "weight_decay_mask")
"""Optax's names of the argument that says which tensors decay."""

Rate = jax.typing.ArrayLike
State = Any
Tensors = Mapping[str, Any]


class OptimiserError(ValueError):
    """An optimiser that cannot be built; the message names the field."""


def build(spec: InnerSpec, matrices: Mapping[str, bool]) -> optax.GradientTransformationExtraArgs:
    """Builds the optimiser. Its `update` takes the learning rate as `rate`; θ minus the result is the new θ.

    Optax's own optimiser is made for each rate. Some optimisers keep momentum of values that the rate has already
    scaled, so a factor afterwards would be a different optimiser when the rate changes.

    Args:
        matrices: which tensors decay, by flat name.

    Raises:
        OptimiserError: an unknown optimiser or argument, or a value that is not allowed.
    """
    clip = optax.clip_by_global_norm(spec.clip_norm)
    chosen = _chosen(spec)
    make = _named(chosen, dict(matrices))

    def update(
        gradient: Any, state: State, theta: Any = None, *, rate: Rate = 1.0, **_: Any
    ) -> tuple[Any, State]:
        change, state = optax.chain(clip, make(rate)).update(gradient, state, theta)
        return jax.tree.map(jnp.negative, change), state

    def init(theta: Any) -> State:
        return optax.chain(clip, make(1.0)).init(theta)

    one = {name: jax.ShapeDtypeStruct((1, 1), jnp.float32) for name in matrices}
    # Traced, because no device may be used before the hosts have joined. Optax uses some values only here.
    try:
        jax.eval_shape(lambda theta: update(theta, init(theta), theta), one)
    except (ArithmeticError, ValueError, TypeError) as error:
        given = ", ".join(f"{name}: {value:g}" for name, value in chosen.arguments.items())
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST]
        raise OptimiserError(
            f"inner.optimizer.arguments: {chosen.name} cannot be computed with {given}: {reason}"
        ) from error
    return optax.GradientTransformationExtraArgs(init, update)


def slots(state: State, theta: Tensors) -> list[dict[str, Any]] | None:
    """The state's tensors for each parameter; None if it has more of them than are saved, or other arrays."""
    parts, _ = _parts(state, theta)
    found = [part for part in parts if isinstance(part, dict)]
    rest = [part for part in parts if not isinstance(part, dict)]
    whole = all(_shapes(slot) == _shapes(theta) for slot in found) and all(map(_is_count, rest))
    return found if whole and len(found) <= SAVED else None


def saved(spec: InnerSpec, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """The optimiser and its tensors that a unit saves, such as `adamw(mu, nu)`; empty if its state cannot be saved.

    Raises:
        OptimiserError: see `build`.
    """
    theta = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    state = jax.eval_shape(build(spec, dict.fromkeys(shapes, False)).init, theta)
    if slots(state, theta) is None:
        return ""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda node: _is_slot(node, theta))
    names = (jax.tree_util.keystr(path[-1:], simple=True) for path, leaf in leaves if isinstance(leaf, dict))
    return f"{_chosen(spec).name}({', '.join(names)})"


def restored(state: State, theta: Tensors, saved: tuple[Tensors, Tensors], count: int) -> State:
    """`state` with the saved slots and with its counts at `count`. `slots` of the state must not be None."""
    parts, structure = _parts(state, theta)
    values = iter(saved)
    filled = [dict(next(values)) if isinstance(part, dict) else _count_like(part, count) for part in parts]
    return jax.tree.unflatten(structure, filled)


def shardings(state: State, theta: Tensors, elsewhere: Any) -> State:
    """Shardings of the state: that of the parameter for arrays of its shape, `elsewhere` for the rest."""
    parts, structure = _parts(state, theta)

    def one(value: Any, parameter: Any) -> Any:
        return jax.tree.map(lambda v: parameter.sharding if v.shape == parameter.shape else elsewhere, value)

    placed = [
        {name: one(value, theta[name]) for name, value in part.items()}
        if isinstance(part, dict)
        else elsewhere
        for part in parts
    ]
    return jax.tree.unflatten(structure, placed)


def _chosen(spec: InnerSpec) -> OptimizerSpec:
    arguments = {"b1": spec.beta1, "b2": spec.beta2, "weight_decay": spec.weight_decay}
    return spec.optimizer or OptimizerSpec(name="adamw", arguments=arguments)


def _named(spec: OptimizerSpec, matrices: dict[str, bool]) -> Callable[[Rate], optax.GradientTransformation]:
    """Returns a function that makes optax's optimiser of that name for a learning rate."""
    if spec.name not in OPTIMIZERS:
        raise OptimiserError(f"inner.optimizer.name: {spec.name!r} is not one of {', '.join(OPTIMIZERS)}")
    make: Callable[..., Any] = getattr(optax, spec.name)
    wanted = {
        name: parameter
        for name, parameter in inspect.signature(make).parameters.items()
        if name not in ("learning_rate", *MASKS) and _kind(parameter) is not None
    }
    arguments: dict[str, Any] = {}
    for name, value in spec.arguments.items():
        if name not in wanted:
            raise OptimiserError(
                f"inner.optimizer.arguments.{name}: {spec.name} takes {', '.join(wanted) or 'none'}"
            )
        kind = _kind(wanted[name])
        assert kind is not None
        if kind(value) != value:
            right = "0 or 1" if kind is bool else "a whole number"
            raise OptimiserError(f"inner.optimizer.arguments.{name}: {value:g}: {right} is wanted")
        arguments[name] = kind(value)
    missing = [n for n, p in wanted.items() if p.default is inspect.Parameter.empty and n not in arguments]
    if missing:
        raise OptimiserError(f"inner.optimizer.arguments.{missing[0]}: {spec.name} needs it")
    for name in MASKS:
        if name in inspect.signature(make).parameters:
            arguments[name] = matrices
    return lambda rate: make(learning_rate=rate, **arguments)


def _kind(parameter: inspect.Parameter) -> type[bool] | type[int] | type[float] | None:
    """Type of an argument, from its default or else its annotation; None if a number cannot express it."""
    if isinstance(parameter.default, (bool, int, float)):
        return type(parameter.default)
    text = str(parameter.annotation)
    if any(word in text for word in ("Callable", "Mask", "Params", "PRNG", "Any]")):
        return None
    if any(word in text for word in ("float", "Scalar", "Numeric")):
        return float
    return int if "int" in text else None


def _parts(state: State, theta: Tensors) -> tuple[list[Any], Any]:
    """The state's leaves and structure. Each mapping with the parameters' names as keys is one leaf."""
    return jax.tree.flatten(state, is_leaf=lambda node: _is_slot(node, theta))


def _is_slot(node: Any, theta: Tensors) -> bool:
    return isinstance(node, dict) and node.keys() == theta.keys()


def _shapes(tensors: Tensors) -> dict[str, tuple[int, ...] | None]:
    return {name: getattr(value, "shape", None) for name, value in tensors.items()}


def _is_count(leaf: Any) -> bool:
    return leaf.shape == () and bool(jnp.issubdtype(leaf.dtype, jnp.integer))


def _count_like(leaf: Any, count: int) -> Any:
    return jax.device_put(jnp.asarray(count, leaf.dtype), leaf.sharding)

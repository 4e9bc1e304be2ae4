"""Inner optimisers by name: what they do to θ, what a unit saves of them, and what is refused."""

import inspect
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from atoll_runtime.contract import OPTIMIZERS, InnerSpec, ModelSpec, OptimizerSpec, OuterSpec
from atoll_runtime.learner import island, optimiser
from atoll_runtime.learner.optimiser import OptimiserError
from atoll_runtime.process import Terminal

MATRICES = {"matrix": True, "norm": False}
SAVED = {
    **{name: f"{name}(mu, nu)" for name in ("adam", "adamw", "adamax", "adabelief", "lamb", "radam", "yogi")},
    "adadelta": "adadelta(e_g, e_x)",
    "adagrad": "adagrad(sum_of_squares)",
    "lion": "lion(mu)",
    "rmsprop": "rmsprop(nu)",
    "sgd": "sgd()",
    "sign_sgd": "sign_sgd()",
    "signum": "signum(ema)",
    **dict.fromkeys(("adafactor", "adan", "amsgrad", "novograd", "sm3"), ""),
}
"""Tensors for each parameter; none where there are more, or others, than a unit saves."""

UNFIT = ("fromage", "lbfgs", "noisy_sgd", "optimistic_adam", "rprop")
"""Their learning rate is not a factor of the update, they want more than a gradient, or optax calls them obsolete."""


def named(name, **arguments):
    return InnerSpec(optimizer=OptimizerSpec(name=name, arguments=arguments))


def drawn(random):
    return {
        "matrix": random.standard_normal((3, 4), np.float32),
        "norm": random.standard_normal(4, np.float32),
    }


@pytest.fixture
def theta():
    return jax.tree.map(jnp.asarray, drawn(np.random.default_rng(0)))


def gradients(count):
    random = np.random.default_rng(1)
    return [drawn(random) for _ in range(count)]


RATES = (0.01, 0.1, 0.3, 0.02)


def descend(made, theta, state, steps, rates=RATES):
    """As the inner step does."""
    for gradient, rate in zip(steps, rates, strict=False):
        update, state = made.update(gradient, state, theta, rate=rate)
        theta = jax.tree.map(jnp.subtract, theta, update)
    return theta, state


def test_the_contract_names_every_optimiser_of_optax_whose_learning_rate_is_a_factor():
    """Not those of `optax.contrib`. Some are another one with an argument set: nadam is adam."""
    home = optax.adamw.__module__
    assert list(OPTIMIZERS) == sorted(
        name
        for name, made in vars(optax).items()
        if name not in UNFIT
        and getattr(getattr(made, "func", made), "__module__", None) == home
        and callable(made)
        and "learning_rate" in inspect.signature(made).parameters
    )


OTHERS = {
    "adadelta": {"weight_decay": 0.1},
    "adafactor": {"momentum": 0.9, "min_dim_size_to_factor": 2},
    "adamw": {"b1": 0.7, "nesterov": 1},
    "lars": {"momentum": 0.7, "weight_decay": 0.1},
    "optimistic_adam_v2": {"alpha": 0.5},
    "optimistic_gradient_descent": {"alpha": 0.5, "beta": 0.8},
    "rmsprop": {"momentum": 0.9, "centered": 1},
    "sgd": {"momentum": 0.9, "nesterov": 1},
    "sm3": {"momentum": 0.5},
}
"""Arguments besides optax's own values; momentum, above all."""


@pytest.mark.parametrize(("name", "arguments"), [*((name, {}) for name in OPTIMIZERS), *OTHERS.items()])
def test_every_optimiser_of_the_list_goes_where_optax_goes_with_the_same_learning_rates(
    theta, name, arguments
):
    """Which some would not if their rate, which changes, were a factor of what optax makes with another one."""
    masks = {
        mask: MATRICES
        for mask in optimiser.MASKS
        if mask in inspect.signature(getattr(optax, name)).parameters
    }
    plain = {
        key: bool(value) if key in ("nesterov", "centered") else value for key, value in arguments.items()
    }
    own = getattr(optax, name)
    if name == "sm3":  # which takes no schedule
        own = optax.inject_hyperparams(own)
    optax_own = own(learning_rate=lambda count: jnp.array(RATES)[count], **masks, **plain)
    made = optimiser.build(named(name, **arguments), MATRICES)
    ours, _ = descend(made, theta, made.init(theta), gradients(len(RATES)))
    theirs, state = theta, optax_own.init(theta)
    for gradient in gradients(len(RATES)):
        clipped, _ = optax.clip_by_global_norm(1.0).update(gradient, optax.EmptyState())
        update, state = optax_own.update(clipped, state, theirs)
        theirs = optax.apply_updates(theirs, update)
    assert not np.array_equal(ours["matrix"], theta["matrix"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), ours, theirs)


def test_the_default_is_optax_adamw_with_the_fields_of_the_spec(theta):
    spec = InnerSpec(beta1=0.8, beta2=0.9, weight_decay=0.2)
    ours = optimiser.build(spec, MATRICES)
    theirs = optimiser.build(named("adamw", b1=0.8, b2=0.9, weight_decay=0.2), MATRICES)
    (one, _), (other, _) = (descend(each, theta, each.init(theta), gradients(3)) for each in (ours, theirs))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), one, other)


@pytest.mark.parametrize(
    ("spec", "saved"),
    [
        *(pytest.param(named(name), saved, id=name) for name, saved in SAVED.items()),
        pytest.param(InnerSpec(), "adamw(mu, nu)", id="default"),
        pytest.param(named("sgd", momentum=0.9), "sgd(trace)", id="momentum"),
        pytest.param(named("rmsprop", centered=1), "rmsprop(mu, nu)", id="centered"),
    ],
)
def test_optimiser_saves_its_moments_and_names_them(spec, saved):
    assert optimiser.saved(spec, {"matrix": (3, 4), "norm": (4,)}) == saved


@pytest.mark.parametrize("name", ["adamw", "lion", "rmsprop"])
def test_healed_unit_continues_with_the_same_moments(theta, name):
    made = optimiser.build(named(name), MATRICES)
    steps = gradients(len(RATES))
    straight, _ = descend(made, theta, made.init(theta), steps)
    half, state = descend(made, theta, made.init(theta), steps[:3])
    mu, nu = (*optimiser.slots(state, half), {}, {})[:2]
    healed = optimiser.restored(made.init(half), half, (mu, nu), 3)
    resumed, _ = descend(made, half, healed, steps[3:], RATES[3:])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), resumed, straight)


@pytest.mark.parametrize(
    ("spec", "named_in_it"),
    [
        pytest.param(named("adamm"), "inner.optimizer.name: 'adamm' is not one of adabelief,", id="name"),
        pytest.param(named("lbfgs"), "inner.optimizer.name: 'lbfgs'", id="wants-more-than-a-gradient"),
        pytest.param(
            named("lion", beta1=0.9), "arguments.beta1: lion takes b1, b2, weight_decay", id="argument"
        ),
        pytest.param(named("lion", learning_rate=1), "arguments.learning_rate: lion takes b1", id="rate"),
        pytest.param(named("sgd", nesterov=0.5), "arguments.nesterov: 0.5: 0 or 1", id="truth"),
        pytest.param(
            named("adafactor", min_dim_size_to_factor=1.5),
            "arguments.min_dim_size_to_factor: 1.5: a whole number",
            id="whole",
        ),
    ],
)
def test_options_unknown_to_optax_are_refused_by_field(spec, named_in_it):
    with pytest.raises(OptimiserError, match=named_in_it):
        optimiser.build(spec, MATRICES)


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        pytest.param(named("radam", b2=1.0), "radam cannot be computed with b2: 1: ZeroDivisionError", id="made"),
        pytest.param(
            named("adafactor", decay_offset=1e30),
            "adafactor cannot be computed with decay_offset: 1e+30: OverflowError",
            id="traced",
        ),
    ],
)  # fmt: skip
def test_a_value_that_optax_cannot_compute_with_ends_a_unit_for_good_before_it_asks_for_anything(spec, told):
    run = SimpleNamespace(
        model=ModelSpec(preset="250k"), inner=spec, outer=OuterSpec(fragments=4), shards=[None]
    )
    with pytest.raises(Terminal) as caught:
        island._layout(run)
    assert caught.value.reason == "ModelInvalid"
    assert str(caught.value).startswith(f"inner.optimizer.arguments: {told}")


def test_building_an_optimiser_initialises_no_device():
    program = (
        "from jax._src.xla_bridge import backends_are_initialized\n"
        "from atoll_runtime.contract import OPTIMIZERS, InnerSpec, OptimizerSpec\n"
        "from atoll_runtime.learner import optimiser\n"
        "for name in OPTIMIZERS:\n"
        "    optimiser.build(InnerSpec(optimizer=OptimizerSpec(name=name)), {'matrix': True, 'norm': False})\n"
        "    assert not backends_are_initialized(), name\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

"""The mixture of experts against a plain loop, and what its router pays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from atoll_runtime.contract import Dimensions, ModelSpec
from atoll_runtime.model import initial, tree
from atoll_runtime.model.decoder import BALANCE_LOSS, ROUTER_Z_LOSS, Decoder
from atoll_runtime.model.experts import Routes, _own, mix, route

SPEC = ModelSpec(
    dimensions=Dimensions(
        layers=2, width=8, heads=2, kv_heads=1, hidden=8, vocabulary=16, experts=4, expert_hidden=6
    )
)
B, T, D, E, F = 2, 5, 8, 4, 6
RAGGED_DOT = jax.lax.ragged_dot


def weights(random):
    shapes = {"router": (D, E), "gate": (E, D, F), "up": (E, D, F), "down": (E, F, D)}
    return {name: jnp.asarray(random.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}


def silu(x):
    return x / (1 + np.exp(-x))


@jax.jit
def best_one(router, x, weights):
    return route(router, x, 1, weights)


def test_no_token_is_dropped_when_all_go_to_one_expert():
    random = np.random.default_rng(0)
    w, x = weights(random), jnp.asarray(random.standard_normal((B, T, D)), jnp.float32)
    routes = Routes(jnp.full((B, T, 1), 2), jnp.ones((B, T, 1)), jnp.zeros(()), jnp.zeros(()))
    hidden = silu(np.asarray(x @ w["gate"][2])) * np.asarray(x @ w["up"][2])
    np.testing.assert_allclose(
        mix(w, x, routes, None), hidden @ np.asarray(w["down"][2]), rtol=1e-3, atol=1e-4
    )


def test_its_gradient_is_that_of_the_dense_sum_over_all_experts():
    """With every expert chosen the sum is a plain einsum, which JAX can differentiate without sorting."""
    random = np.random.default_rng(3)
    w, x = weights(random), jnp.asarray(random.standard_normal((B, T, D)), jnp.float32)

    def sorted_out(w):
        return jnp.sum(mix(w, x, route(w["router"], x, E, jnp.ones((B, T))), None) ** 2)

    def dense_out(w):
        shares = jax.nn.softmax(x @ w["router"])
        hidden = jax.nn.silu(jnp.einsum("BTD,EDF->BTEF", x, w["gate"])) * jnp.einsum(
            "BTD,EDF->BTEF", x, w["up"]
        )
        return jnp.sum(jnp.einsum("BTEF,EFD,BTE->BTD", hidden, w["down"], shares) ** 2)

    got, wanted = jax.jit(jax.grad(sorted_out))(w), jax.jit(jax.grad(dense_out))(w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-2), got, wanted)


def whatever_is_left_there(rows, weights, sizes):
    """`ragged_dot` as a chip may have it: rows of no group are NaN in what it gives, and in its gradient too."""
    grouped = (jnp.arange(rows.shape[0]) < sizes.sum())[:, None]

    @jax.custom_vjp
    def product(rows, weights):
        return jnp.where(grouped, RAGGED_DOT(rows, weights, sizes), jnp.nan)

    def backward(given, cotangent):
        rows, weights = given
        _, pull = jax.vjp(lambda *each: RAGGED_DOT(*each, sizes), jnp.where(grouped, rows, 0), weights)
        of_rows, of_weights = pull(jnp.where(grouped, cotangent, 0))
        return jnp.where(grouped, of_rows, jnp.nan), of_weights

    product.defvjp(lambda *given: (product(*given), given), backward)
    return product(rows, weights)


@pytest.mark.parametrize("chips", [1, 2])
def test_rows_of_no_group_reach_neither_the_sum_nor_a_gradient(chips):
    """With the experts split over chips, a token's other experts stand in no group of this chip."""
    random = np.random.default_rng(7)
    w, x = weights(random), jnp.asarray(random.standard_normal((B, T, D)), jnp.float32)

    def found(w, x, product):
        routes = route(w["router"], x, 2, jnp.ones((B, T)))
        each = E // chips
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("atoll_runtime.model.experts.jax.lax.ragged_dot", product)
            shares = [
                _own(
                    *(w[name][first : first + each] for name in ("gate", "up", "down")),
                    x,
                    routes.experts_BTC - first,
                    routes.shares_BTC,
                )
                for first in range(0, E, each)
            ]
        return jnp.sum(sum(shares) ** 2)

    both = jax.value_and_grad(found, argnums=(0, 1))
    wanted, got = both(w, x, RAGGED_DOT), both(w, x, whatever_is_left_there)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, wanted)


def test_an_even_load_costs_one_and_a_single_expert_costs_all():
    x = jnp.asarray(np.eye(E, D)[None], jnp.float32)
    sharp = jnp.asarray(30 * np.eye(D, E), jnp.float32)
    even = best_one(sharp, x, jnp.ones((1, E)))
    single = best_one(sharp, jnp.tile(x[:, :1], (1, E, 1)), jnp.ones((1, E)))
    assert float(even.balance) == pytest.approx(1, rel=1e-3)
    assert float(single.balance) == pytest.approx(E, rel=1e-3)
    assert float(even.z) == pytest.approx(30**2, rel=1e-3)


def test_tokens_of_weight_zero_cost_the_router_nothing():
    random = np.random.default_rng(5)
    router, x = (jnp.asarray(random.standard_normal(shape), jnp.float32) for shape in ((D, E), (1, E, D)))
    some = jnp.array([[1.0, 1, 1, 0]])
    found, other = (best_one(router, each, some) for each in (x, x.at[:, 3:].set(9)))
    assert float(found.z) == float(other.z) != float(best_one(router, x, jnp.ones((1, E))).z)
    assert float(found.balance) == float(other.balance) > 0


def test_the_decoder_trains_on_the_routers_losses_and_is_evaluated_without_them():
    tensors = initial(SPEC)
    tensors["layers/experts/router"][:] = 0  # an even router: balance 1, z log(E)²
    params = tree(tensors)
    tokens = np.random.default_rng(0).integers(0, 16, (2, 7))
    batch = {"tokens": jnp.asarray(tokens, jnp.int32), "weights": jnp.ones((2, 6))}
    decoder = Decoder(experts_per_token=2)
    paid, plain = (float(jax.jit(each)(params, batch)) for each in (decoder.loss, decoder.evaluate))
    assert paid - plain == pytest.approx(BALANCE_LOSS + ROUTER_Z_LOSS * np.log(E) ** 2, rel=1e-3)

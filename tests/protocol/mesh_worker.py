"""One process with 8 CPU devices, run by test_model_meshes: the same training on many meshes, as JSON on stdout."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax

from atoll_runtime import protocol
from atoll_runtime.contract import Dimensions, InnerSpec, MeshSpec, ModelSpec, OptimizerSpec
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.mesh import span
from atoll_runtime.learner.snapshot import host_part
from atoll_runtime.model import describe, initial
from atoll_runtime.protocol.fragments import build_layout

protocol.fragments.LEAST_BAND = 64  # so that embeddings as small as these are cut
protocol.fragments.LEAST_LAYER, protocol.fragments.EVEN_FRAGMENTS = 0, 20  # and some layers
DENSE = Dimensions(layers=2, width=16, heads=4, kv_heads=2, hidden=24, vocabulary=32)
MODELS = {
    "dense": ModelSpec(dimensions=DENSE),
    "moe": ModelSpec(dimensions=DENSE.model_copy(update={"experts": 4, "expert_hidden": 8})),
    "task": ModelSpec(task="__main__:Task"),
}
MESHES = {
    "dense": [(1, 1, 1, 1), (2, 1, 1, 1), (4, 2, 1, 1), (8, 1, 1, 1), (8, 2, 1, 3), (4, 2, 1, 3)],
    "moe": [(1, 1, 1, 1), (8, 1, 1, 1), (2, 1, 2, 1), (4, 1, 4, 1), (8, 2, 2, 1)],
    "task": [(1, 1, 1, 1), (2, 1, 1, 1), (8, 1, 1, 1)],
}
"""Devices, tensor, expert, parts of a step's batch."""
BATCH, LENGTH, FRAGMENTS = 6, 12, 2
"""Six rows fill up to eight on eight devices."""
DESCENT = OptimizerSpec(name="sgd")
"""Without momentum and at a learning rate of 1 the first step's change is the gradient."""


class Task:
    """Of the user's own: one tensor of stacked layers, one of which nothing is said, and a scalar."""

    axes = {"layers": ("layers", "width", "hidden")}  # noqa: RUF012

    def init(self, rng):
        table, layers = jax.random.normal(rng, (32, 16)), jax.random.normal(rng, (2, 16, 16)) / 4
        return {"table": table, "layers": layers, "heat": jnp.ones(())}

    def loss(self, params, batch, rng):
        x = params["table"][batch["tokens"][:, :-1]]
        for layer in params["layers"]:
            x = jnp.tanh(x @ layer)
        logits = params["heat"] * x @ params["table"].T
        nats = optax.softmax_cross_entropy_with_integer_labels(logits, batch["tokens"][:, 1:])
        return jnp.sum(nats * batch["weights"]) / jnp.sum(batch["weights"])


def scenario(model, devices, shape, parts):
    """Two steps, the first of which tells the gradient, and every fragment out and back."""
    mesh = span(jax.devices()[:devices], shape)
    spec = InnerSpec(mesh=shape, z_loss=1e-3, clip_norm=1e6, optimizer=DESCENT, accumulation=parts)
    inner = Inner(mesh, model, spec, initial(model), BATCH, LENGTH)
    random = np.random.default_rng(1)
    layout = build_layout(describe(model), FRAGMENTS)
    fragments = Fragments(mesh, layout, inner.theta)
    anchor = gathered(inner.theta)
    losses = [float(inner.step(rows(random, inner), 1.0))]
    gradients = {name: anchor[name] - value for name, value in gathered(inner.theta).items()}
    losses += [float(inner.step(rows(random, inner), 1.0))]
    return {
        "mesh": [devices, shape.tensor, shape.expert, parts],
        "rows": inner.rows[1] - inner.rows[0],
        "losses": losses,
        "gradients": {name: value.ravel().tolist() for name, value in gradients.items()},
        "largest_share": max(share(value) for name, value in inner.theta.items() if value.ndim > 2),
        "wrong_fragments": [n for n in range(FRAGMENTS) if not whole(inner, fragments, layout, anchor, n)],
    }


def rows(random, inner):
    start, stop = inner.rows
    tokens = random.integers(0, DENSE.vocabulary, (BATCH, LENGTH + 1)).astype(np.int32)
    return tokens[np.arange(start, stop) % BATCH]


def whole(inner, fragments, layout, anchor, number):
    """Fragment `number` leaves as Δ = anchor - θ, split evenly, and what comes in its place is θ and anchor."""
    flat = fragments.extract(inner.theta, number, "float32")
    part, size = host_part(flat), layout.fragments[number].size
    shares = {shard.data.size for shard in flat.addressable_shards}
    wanted = layout.flatten(anchor, number) - layout.flatten(gathered(inner.theta), number)
    good = np.allclose(part[:size], wanted, atol=1e-7) and not part[size:].any() and len(shares) == 1

    values = np.random.default_rng(number).standard_normal(len(part)).astype(jnp.bfloat16)
    placed = {name: value.sharding for name, value in inner.theta.items()}
    inner.theta = fragments.receive(inner.theta, number, values)
    arrived = layout.flatten(gathered(inner.theta), number)
    stayed = {name: value.sharding for name, value in inner.theta.items()} == placed
    again = host_part(fragments.extract(inner.theta, number, "float32"))
    return bool(good and np.array_equal(arrived, values[:size]) and stayed and not again[:size].any())


def share(value):
    """The part of a tensor that the fullest device holds."""
    return max(shard.data.size for shard in value.addressable_shards) / value.size


def gathered(tensors):
    return {name: np.asarray(value) for name, value in tensors.items()}


def main():
    result = {
        name: [
            scenario(model, devices, MeshSpec(tensor=tensor, expert=expert), parts)
            for devices, tensor, expert, parts in MESHES[name]
        ]
        for name, model in MODELS.items()
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()

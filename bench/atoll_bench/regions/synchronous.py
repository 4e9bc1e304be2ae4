"""Synchronous data-parallel training, one process a region:
`python -m atoll_bench.regions.synchronous FOLDER RANK RANKS BATCH COORDINATOR`.

Each step averages the gradients of all processes in bfloat16 with gloo, by a reduce-scatter (an all-to-all and a sum)
and an all-gather. These send as many bits as a ring, 2·(n-1)/n·N·16. The elements travel as uint16, because XLA's CPU
backend would send bfloat16 as float32.
"""

from __future__ import annotations

import json
import math
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from atoll_bench.island import batches, loss_and_gradient
from atoll_local.process import wait_for
from atoll_runtime.contract import RunContract, parse_run
from atoll_runtime.files import replace
from atoll_runtime.learner import optimiser
from atoll_runtime.learner.loop import DATA_TIMEOUT
from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.model import initial
from atoll_runtime.model.objective import objective

AXIS = "regions"
WARM_STEPS, MEASURED_STEPS = 3, 12
"""The first steps compile all programs and end on all processes at once. The others, without exchange, are measured."""
POLL_SECONDS = 0.02
WAIT_SECONDS = 300.0
"""Time limit for the sign to begin."""


class Replica:
    """One process's copy of the model, and its share of the data: `batch` sequences of each step."""

    def __init__(self, run: RunContract, rank: int, ranks: int, batch: int) -> None:
        self._run, self._ranks = run, ranks
        self._batches = partial(batches, run, batch, rank, ranks)
        found = objective(run.model, run.inner)
        optimise = optimiser.build(run.inner, found.matrices)
        self._first: dict[str, Array] = {name: jnp.array(value) for name, value in initial(run.model).items()}
        self._device = jax.local_devices()[0]
        self._init = optimise.init
        flat, unravel = ravel_pytree(self._first)
        self.begin()

        def gradient(theta: dict[str, Array], tokens: Array) -> tuple[Array, Array]:
            loss, each = loss_and_gradient(found, theta, tokens)
            whole = jnp.pad(ravel_pytree(each)[0], (0, -flat.size % ranks))
            return loss, jax.lax.bitcast_convert_type(whole.astype(jnp.bfloat16), jnp.uint16)

        def update(
            theta: dict[str, Array], state: optax.OptState, bits: Array, rate: Array
        ) -> tuple[dict[str, Array], optax.OptState]:
            mean = jax.lax.bitcast_convert_type(bits, jnp.bfloat16).astype(jnp.float32)[: flat.size]
            change, state = optimise.update(unravel(mean), state, theta, rate=rate)
            return jax.tree.map(jnp.subtract, theta, change), state

        self._gradient, self._update = jax.jit(gradient), jax.jit(update)
        mesh = Mesh(np.array(jax.devices()), (AXIS,))
        rows = PartitionSpec(AXIS)
        self._rows = NamedSharding(mesh, rows)
        self._mean = jax.jit(jax.shard_map(self._average, mesh=mesh, in_specs=rows, out_specs=rows))

    def begin(self) -> None:
        """Goes back to the first parameters and the first batch."""
        # Committed to the device like the result of an exchange. Otherwise every program would be compiled again.
        self.theta, self._state = jax.device_put((self._first, self._init(self._first)), self._device)
        self.batches = self._batches()

    def _average(self, bits: Array) -> Array:
        """The mean of the rows of all processes, uint16 [1, N], which hold bfloat16."""
        parts = jax.lax.all_to_all(bits.reshape(self._ranks, -1), AXIS, 0, 0)
        mean = jax.lax.bitcast_convert_type(parts, jnp.bfloat16).astype(jnp.float32).mean(0)
        mine = jax.lax.bitcast_convert_type(mean.astype(jnp.bfloat16), jnp.uint16)
        whole: Array = jax.lax.all_gather(mine, AXIS)
        return whole.reshape(1, -1)

    def exchange(self, bits: Array) -> Array:
        """The mean over all processes of their `bits`."""
        whole = jax.make_array_from_process_local_data(self._rows, np.asarray(bits)[None])
        found: Array = self._mean(whole).addressable_shards[0].data[0]
        return found

    def step(self, number: int, exchanged: bool) -> float:
        """Makes one step. Returns this process's loss."""
        loss, bits = self._gradient(self.theta, self.batches.take(DATA_TIMEOUT).tokens)
        if exchanged:
            bits = self.exchange(bits)
        rate = learning_rate(self._run.inner, self._run.target.global_steps, number, number, healed=False)
        self.theta, self._state = self._update(self.theta, self._state, bits, np.float32(rate))
        jax.block_until_ready(self.theta)
        return float(loss)


def main(folder: Path, rank: int, ranks: int, batch: int, coordinator: str) -> None:
    """Measures steps without exchange, writes their seconds to `ready-RANK`, waits for `go`, and trains."""
    run = parse_run((folder / "run.json").read_text())
    jax.distributed.initialize(coordinator, ranks, rank)
    replica, times = Replica(run, rank, ranks, batch), []
    for number in range(WARM_STEPS + MEASURED_STEPS):
        began = time.monotonic()
        replica.step(number, exchanged=number < WARM_STEPS)
        times.append(time.monotonic() - began)
    replica.batches.close()
    replace(folder / f"ready-{rank}", json.dumps({"step_seconds": median(times[WARM_STEPS:])}).encode())
    wait_for("the sign to begin", (folder / "go").exists, WAIT_SECONDS, interval=POLL_SECONDS)
    replica.begin()
    steps = run.target.global_steps
    assert steps is not None
    began, loss = time.monotonic(), math.nan
    for number in range(steps):
        loss = replica.step(number, exchanged=True)
    seconds = time.monotonic() - began
    replica.batches.close()
    if not math.isfinite(loss):
        raise ArithmeticError(f"the loss is {loss} after {steps} steps")
    if rank == 0:
        whole: dict[str, Any] = {name: np.asarray(value) for name, value in replica.theta.items()}
        np.savez(folder / "theta.npz", **whole)
    replace(folder / f"done-{rank}", json.dumps({"seconds": seconds}).encode())
    jax.distributed.shutdown()


if __name__ == "__main__":
    _, folder, rank, ranks, batch, coordinator = sys.argv
    main(Path(folder), int(rank), int(ranks), int(batch), coordinator)

"""The two training loops that are compared: an island's, and a plain one without Atoll. Both run in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from atoll_cli.errors import CommandError
from atoll_runtime.checkpoint import GlobalStore
from atoll_runtime.checkpoint.units import UnitStore
from atoll_runtime.contract import InnerSpec, ModelSpec, RunContract, UnitContract
from atoll_runtime.data import Prefetch, Reader, Stream
from atoll_runtime.learner import optimiser, seed
from atoll_runtime.learner.client import SyncerClient
from atoll_runtime.learner.compilation import Programs
from atoll_runtime.learner.fragments import Fragments
from atoll_runtime.learner.host_consensus import Agreement
from atoll_runtime.learner.inner import Inner
from atoll_runtime.learner.loop import Loop
from atoll_runtime.learner.mesh import span
from atoll_runtime.learner.proposal import Ending
from atoll_runtime.learner.saver import Saver
from atoll_runtime.learner.snapshot import Snapshots
from atoll_runtime.learner.start import Start
from atoll_runtime.model import describe
from atoll_runtime.model.objective import Objective, objective
from atoll_runtime.protocol.fragments import build_layout
from atoll_runtime.transport.sessions import TlsNetwork
from atoll_runtime.transport.tls import Tls


def check_device() -> None:
    """Raises `CommandError` if several devices are visible."""
    if len(jax.devices()) != 1:
        raise CommandError(f"the plain loop is one device's; {len(jax.devices())} are visible")


class Plain:
    """Trains the model with the run's optimiser, which is optax's AdamW by default.

    It waits only for the last step of a call, so that the device is never idle.

    Args:
        theta: initial values by flat name.
        batch: returns the tokens [rows, length + 1] of a step.
        rate: returns the learning rate of a step.
    """

    def __init__(
        self,
        model: ModelSpec,
        spec: InnerSpec,
        theta: Mapping[str, np.ndarray],
        batch: Callable[[int], np.ndarray],
        rate: Callable[[int], float],
    ) -> None:
        self._batch, self._rate = batch, rate
        self._objective = objective(model, spec)
        self._optimiser = optimiser.build(spec, self._objective.matrices)
        self._theta = {name: jnp.array(value) for name, value in theta.items()}
        self._moments = self._optimiser.init(self._theta)
        self._step = jax.jit(self._advance, donate_argnums=(0, 1))
        self._steps = 0

    def advance(self, steps: int) -> None:
        for step in range(self._steps, self._steps + steps):
            self._theta, self._moments, _ = self._step(
                self._theta, self._moments, self._batch(step), np.float32(self._rate(step))
            )
        self._steps += steps
        jax.block_until_ready(self._theta)

    def _advance(
        self, theta: dict[str, Array], moments: optax.OptState, tokens: Array, rate: Array
    ) -> tuple[dict[str, Array], optax.OptState, Array]:
        loss, gradient = loss_and_gradient(self._objective, theta, tokens)
        update, moments = self._optimiser.update(gradient, moments, theta, rate=rate)
        return jax.tree.map(jnp.subtract, theta, update), moments, loss


def loss_and_gradient(
    objective: Objective, theta: dict[str, Array], tokens: Array
) -> tuple[Array, dict[str, Array]]:
    """Of tokens [rows, length + 1] that all count."""
    batch = {"tokens": tokens, "weights": jnp.ones((tokens.shape[0], tokens.shape[1] - 1))}
    with objective.products():
        return jax.value_and_grad(objective.loss)(theta, batch, jax.random.key(0))


def batches(run: RunContract, batch: int, stream: int = 0, streams: int = 1) -> Prefetch:
    """Reads a stream from its beginning. Each loop has its own reader."""
    reader = Reader(run.data.uri, "train", run.data.sequence_length)
    examples = Stream(reader.examples, run.data.seed, stream, streams)
    return Prefetch(lambda at: reader.example(examples.index(at)), 0, batch, (0, batch))


WELCOME_TIMEOUT = 20.0
CLOSE_TIMEOUT = 5.0


class Island:
    """A unit of one host as `learner.island.train` builds it, without a peer server.

    It is paused between phases. Its clock does not include the pauses.
    """

    def __init__(self, run: RunContract, unit: UnitContract, tls: Tls) -> None:
        layout = build_layout(describe(run.model), run.outer.fragments, len(run.shards))
        mesh = span(jax.devices())
        agreement = Agreement(mesh)
        units = UnitStore(run.checkpoint.uri, run.uid, optimiser.saved(run.inner, layout.shapes))
        seeded = seed.from_checkpoint(GlobalStore(run.checkpoint.uri), units, unit.unit, layout, agreement)
        self.theta = dict(seeded.cut.theta)
        """Initial values, on the host."""
        programs = Programs(agreement, None)
        length = run.data.sequence_length
        inner = Inner(mesh, run.model, run.inner, self.theta, unit.batch, length, programs=programs)
        fragments = Fragments(mesh, layout, inner.theta, programs)
        networks = [TlsNetwork(shard, tls) for shard in run.shards]
        self.client = SyncerClient(run, unit, layout, fragments.bounds, fragments.padded, networks)
        self.client.start(seeded.cut.versions, seeded.cut.step, seeded.message)
        self._batches = batches(run, unit.batch)
        self.saver = Saver(units, unit, layout)
        self._filled = [number for number, fragment in enumerate(layout.fragments) if fragment.size]
        welcome = self.client.welcome(WELCOME_TIMEOUT)
        if welcome is None:
            raise CommandError(f"the syncer did not answer within {WELCOME_TIMEOUT:g} s")
        start = Start(seeded.cut.versions, welcome.versions, welcome.global_step)
        self._snapshots = Snapshots(fragments.bounds, start.targets, self.saver.put)
        self._paused, self._paused_at = 0.0, time.monotonic()
        self.loop = Loop(
            run,
            inner,
            fragments,
            self.client,
            agreement,
            self._batches,
            start,
            threading.Event(),
            self._snapshots,
            clock=lambda: time.monotonic() - self._paused,
        )

    @property
    def warm(self) -> bool:
        """Whether all programs are compiled: every fragment was merged and received, and the moments were saved."""
        versions = self.loop.progress.versions
        return self.saver.saved > 0 and all(versions[number] for number in self._filled)

    def advance(self, steps: int) -> None:
        """Makes steps. Raises `CommandError` if the unit was refused or stopped."""
        self._paused += time.monotonic() - self._paused_at
        for _ in range(steps):
            ending = self.loop.advance()
            if ending is not Ending.NONE:
                raise CommandError(f"the island's loop ended: {ending.name}: {self.client.last_word()}")
        self._paused_at = time.monotonic()

    def close(self) -> None:
        self._batches.close()
        self._snapshots.close()
        self.saver.close(CLOSE_TIMEOUT)
        self.client.close(CLOSE_TIMEOUT)

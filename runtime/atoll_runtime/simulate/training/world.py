"""One training, either with a syncer and learners in simulated time or plain data-parallel."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from atoll_runtime.learner.schedule import learning_rate
from atoll_runtime.protocol.fragments import Array
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.simulate.fleet.scenario import drifts
from atoll_runtime.simulate.shard import UNLIMITED, Shard
from atoll_runtime.simulate.training.learner import Island, Learner
from atoll_runtime.simulate.training.programs import Programs, Share
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.syncer.arrays import NumpyArrays

SLOWNESS = 4
"""A training has stalled when it takes more than this many times the time of its steps."""


@dataclass(frozen=True)
class Result:
    """The global model's held-out loss, and figures of its training."""

    loss: float
    """Nats per token, on held-out text."""
    tokens: int
    """Trained by all learners together, including lost incarnations."""
    merged_tokens: int
    """Of these, the tokens that were merged into the global model, averaged over fragments."""
    parameters: int
    steps: int
    """Steps of the global clock; in data-parallel training, of the training itself."""
    seconds: float = 0.0
    """Simulated seconds."""
    merges: int = 0
    members: float = 0.0
    """Mean number of learners in a merge."""
    real_interval: float = 0.0
    """H as measured."""
    losses: int = 0
    """How often a learner was lost."""
    refused: int = 0
    """Contributions that the guard refused, or that had been merged already."""


class World:
    """One training. Call `train` once."""

    def __init__(self, setting: Setting, seed: int, programs: Programs | None = None) -> None:
        """`programs`: existing ones of the same setting and seed."""
        self.setting = setting
        run = setting.run(seed)
        self.programs = programs or Programs(run, setting.batch)
        paces, losses = np.random.default_rng(seed).spawn(2)
        speeds, chances = drifts(setting.paces, setting.jitter, paces), losses.spawn(setting.learners)
        self.islands = [Island(number, speeds[number], chances[number]) for number in range(setting.learners)]
        rules = Rules.of(run, batches={island.name: (setting.batch,) for island in self.islands})
        rules = replace(rules, silence=UNLIMITED)  # a computing unit is never silent in simulated time
        layout, first = self.programs.layout, self.programs.first
        self.shard = Shard(run, rules, layout, first, NumpyArrays(run.outer, layout), setting.costs)
        self.loop = self.shard.loop
        self.losses = 0

    def train(self) -> Result:
        """Trains to the end of the run.

        Raises:
            LossNotFinite: a learner's loss is not finite.
            Stalled: the run does not reach its target.
        """
        for island in self.islands:
            self.loop.plan(0.0, None, self._begin, island)
        machine = self.shard.machine
        longest = SLOWNESS * self.setting.steps * max(self.setting.paces)
        members = [len(taken) for _, taken in self.shard.until_end(longest)]
        owned = sum(fragment.size > 0 for fragment in self.programs.layout.fragments)
        return Result(
            loss=self.programs.loss(self.theta()),
            tokens=sum(island.tokens for island in self.islands),
            merged_tokens=sum(unit.account.merged for unit in machine.units.values()) // owned,
            parameters=self.programs.parameters,
            steps=machine.step,
            seconds=self.loop.now,
            merges=len(members),
            members=sum(members) / max(len(members), 1),
            real_interval=machine.rounds.interval.value or 0.0,
            losses=self.losses,
            refused=sum(self.refusals().values()),
        )

    def refusals(self) -> dict[str, int]:
        """Returns by unit how many of its contributions the guard refused, or had been merged already."""
        return {name: unit.refused + unit.repeated for name, unit in self.shard.machine.units.items()}

    def theta(self) -> dict[str, Array]:
        """Returns the global model, float32, by flat name."""
        tensors: dict[str, Array] = {}
        for p, version in enumerate(self.shard.fragments):
            self.programs.layout.unflatten(p, version.theta, tensors)
        return tensors

    def _begin(self, island: Island) -> None:
        learner = Learner(self.setting, self.programs, self.shard, island)
        if self.setting.failures is not None:
            rest = island.chance.exponential(self.setting.failures.every)
            self.loop.plan(self.loop.now + rest, None, self._lose, learner, island)

    def _lose(self, learner: Learner, island: Island) -> None:
        assert self.setting.failures is not None
        self.losses += 1
        learner.kill()
        self.loop.plan(self.loop.now + self.setting.failures.away, None, self._begin, island)


def decoupled(setting: Setting, seed: int) -> Result:
    """Trains with the setting's learners. Raises what `World.train` raises."""
    return World(setting, seed).train()


def data_parallel(setting: Setting, seed: int) -> Result:
    """Trains for the setting's steps with its inner optimiser. Raises `ArithmeticError`: the loss is not finite."""
    run = setting.run(seed)
    programs = Programs(run, setting.sequences)
    inner, batches = programs.inner, Share(programs.train, seed, 0, 1, setting.sequences)
    loss = math.nan
    for step in range(setting.steps):
        rate = learning_rate(run.inner, setting.steps, step, step, healed=False)
        loss = float(inner.step(batches.take().tokens, rate))
    if not math.isfinite(loss):
        raise ArithmeticError(f"the loss is {loss} after {setting.steps} steps")
    return Result(
        loss=programs.loss(inner.theta),
        tokens=setting.steps * inner.tokens,
        merged_tokens=setting.steps * inner.tokens,
        parameters=programs.parameters,
        steps=setting.steps,
    )

"""Simulated time around the syncer and the learners of one training."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from atoll_runtime.simulate.fleet.speeds import DRIFT_STEPS, Drift
from atoll_runtime.simulate.training.learner import Island, Learner
from atoll_runtime.simulate.training.programs import Programs
from atoll_runtime.simulate.training.result import Result
from atoll_runtime.simulate.training.setting import Setting
from atoll_runtime.simulate.training.shard import Shard
from atoll_runtime.sync.fragments import Array

SLOWNESS = 4
"""A training that takes so many times the time of its steps has come to a stop."""


class Stalled(RuntimeError):
    """The target is out of reach."""


class World:
    """One training, made by `run` once."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting, self.costs, self.now = setting, setting.costs, 0.0
        self.run = setting.run(seed)
        self.programs = Programs(self.run, setting.batch)
        self.shard = Shard(self)
        self.losses = 0
        self._queue: list[tuple[float, int, Callable[..., None], Any]] = []
        self._order = count()
        # A stream of chance for each, so that learners keep their paces and losses when only a policy changes.
        paces, self._chances = (rng.spawn(setting.learners) for rng in np.random.default_rng(seed).spawn(2))
        keeps = setting.failures is not None and setting.failures.moments
        self.islands = [
            Island(f"u{number}", number, Drift(pace, setting.jitter, DRIFT_STEPS, rng), keeps)
            for number, (pace, rng) in enumerate(zip(setting.paces, paces, strict=True))
        ]

    def at(self, when: float, what: Callable[..., None], *facts: object) -> None:
        """Calls `what` at that time; in the order of calls, where times are the same."""
        heapq.heappush(self._queue, (when, next(self._order), what, facts))

    def warmth(self, step: int) -> float:
        """Share of η at a global step."""
        return min(1.0, step / self.setting.warmup) if self.setting.warmup else 1.0

    def train(self) -> Result:
        """To the end of the run.

        Raises:
            LossNotFinite: of a learner.
            Stalled: the target is out of reach.
        """
        for island in self.islands:
            self.at(0.0, self._begin, island)
        longest = SLOWNESS * self.setting.steps * max(self.setting.paces)
        while not self.shard.finished:
            if not self._queue or self.now > longest:
                raise Stalled(f"at {self.now:.0f} s the clock stands at {self.shard.machine.step}")
            self.now, _, what, facts = heapq.heappop(self._queue)
            what(*facts)
        machine = self.shard.machine
        accounts = [unit.account for unit in machine.units.values()]
        owned = sum(fragment.size > 0 for fragment in self.programs.layout.fragments)
        merges = machine.rounds.merges
        return Result(
            loss=self.programs.loss(self.theta()),
            tokens=sum(island.tokens for island in self.islands),
            merged_tokens=sum(account.merged for account in accounts) // owned,
            parameters=self.programs.parameters,
            steps=machine.step,
            seconds=self.now,
            merges=merges,
            members=self.shard.members / max(merges, 1),
            real_interval=machine.rounds.interval.value or 0.0,
            losses=self.losses,
        )

    def theta(self) -> dict[str, Array]:
        """The global model, float32, by flat name."""
        tensors: dict[str, Array] = {}
        for p, version in enumerate(self.shard.state.fragments):
            self.programs.layout.unflatten(p, version.theta, tensors)
        return tensors

    def _begin(self, island: Island) -> None:
        island.incarnations += 1
        learner = Learner(self, island, island.incarnations)
        if self.setting.failures is not None:
            rest = self._chances[island.number].exponential(self.setting.failures.every)
            self.at(self.now + rest, self._lose, learner, island)
        learner.advance()

    def _lose(self, learner: Learner, island: Island) -> None:
        assert self.setting.failures is not None
        self.losses += 1
        learner.lose()
        self.at(self.now + self.setting.failures.away, self._begin, island)


def decoupled(setting: Setting, seed: int) -> Result:
    """Trains with the setting's learners.

    Raises:
        LossNotFinite: of a learner.
        Stalled: the target is out of reach.
    """
    return World(setting, seed).train()

"""Compares inner steps per second of an island that exchanges with a plain loop of the same model.

One process has both loops, which run phases of equal steps in turn (plain, island, island, plain, …) and are idle
otherwise. The syncer is another process, on other cores or on the same. A phase of the island ends when its threads
(transfers, saves) are idle. The CPU seconds after its last step, including the syncer's if both share cores, are added
to the phase. So the whole cost of the exchange is in the island's phases.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import jax

from atoll_bench import cores
from atoll_bench.island import Island, batches
from atoll_bench.plain import Plain
from atoll_bench.rates import Pair, Rates, rates
from atoll_bench.syncer import UNIT, Syncer
from atoll_cli.errors import CommandError
from atoll_runtime.contract import ModelSpec, UnitContract
from atoll_runtime.learner.loop import DATA_TIMEOUT
from atoll_runtime.learner.schedule import learning_rate

WARM_STEPS = 200
"""Most steps, besides those until the first cut, until every program is compiled."""
REST_SECONDS = 0.25
REST = 0.05
"""A process that uses less of a core over REST_SECONDS is idle."""
REST_TIMEOUT = 15.0
"""A unit counts as silent after 30 s."""


@dataclass(frozen=True)
class Cores:
    """The cores of the two processes."""

    learner: tuple[int, ...]
    syncer: tuple[int, ...]

    @property
    def placement(self) -> Literal["apart", "shared"]:
        return "shared" if set(self.learner) & set(self.syncer) else "apart"


@dataclass(frozen=True)
class Setting:
    """What is trained, and for how long; P, H and τ are a run's defaults."""

    preset: str
    batch: int
    length: int
    """Tokens of a sequence."""
    checkpoint_interval: int
    """Global steps between two cuts."""
    pairs: int
    seconds: float
    """Approximate seconds of a phase of the plain loop."""


@dataclass(frozen=True)
class LearnerFigure(Rates):
    """One placement's result."""

    placement: Literal["apart", "shared"]
    learner_cores: tuple[int, ...]
    syncer_cores: tuple[int, ...]
    preset: str
    parameters: int
    batch: int
    length: int
    merges: int
    cuts: int
    """Completed saves of the unit's moments."""
    staleness: int
    """Most global steps since the unit's last merge at the end of a phase."""
    bytes_in: int
    bytes_out: int
    others: float
    """Average number of cores used by other processes."""


def placements() -> list[Cores]:
    """One core each, then the same core for both; only the latter on a machine with one core."""
    own = cores.usable()
    apart = [Cores(own[:1], own[1:2])] if len(own) > 1 else []
    return [*apart, Cores(own[:1], own[:1])]


def measure(setting: Setting, places: list[Cores]) -> Iterator[LearnerFigure]:
    """Measures each placement. All must have the learner on the same cores.

    Raises:
        CommandError: the measurement failed.
    """
    model = ModelSpec(preset=setting.preset)
    before = cores.usable()
    cores.pin(os.getpid(), places[0].learner)  # before JAX counts them
    try:
        if len(jax.devices()) != 1:
            raise CommandError(f"the plain loop is one device's; {len(jax.devices())} are visible")
        with (
            tempfile.TemporaryDirectory(prefix="atoll-bench-") as folder,
            Syncer(Path(folder), model, setting.length, setting.checkpoint_interval) as syncer,
        ):
            syncer.await_running()
            with contextlib.closing(_Bench(setting, syncer)) as bench:
                for place in places:
                    yield bench.figure(place)
    except OSError as error:
        raise CommandError(str(error)) from error
    finally:
        cores.pin(os.getpid(), before)


@dataclass(frozen=True)
class _Now:
    """A moment, and the CPU seconds of both processes until then."""

    wall: float
    learner: float
    syncer: float

    def taken(self, since: _Now, both: bool) -> float:
        """CPU seconds of the learner since then, or of both."""
        return self.learner - since.learner + (self.syncer - since.syncer if both else 0.0)


class _Bench:
    """Both loops, and the syncer."""

    def __init__(self, setting: Setting, syncer: Syncer) -> None:
        self.setting, self.syncer = setting, syncer
        unit = UnitContract(
            unit=UNIT,
            incarnation=1,
            host=0,
            hosts=1,
            coordinator="localhost:1",
            batch=setting.batch,
            stream=0,
            streams=1,
        )
        self.island = Island(syncer.run, unit, syncer.tls)
        run, self._batches = syncer.run, batches(syncer.run, unit)
        self.plain = Plain(
            run.model,
            run.inner,
            self.island.theta,
            lambda _: self._batches.take(DATA_TIMEOUT).tokens,
            lambda step: learning_rate(run.inner, run.target.global_steps, step, step, healed=False),
        )
        self.parameters = sum(value.size for value in self.island.theta.values())
        self.steps = 0
        """Steps of a phase; 0 until the programs are compiled."""

    def close(self) -> None:
        self._batches.close()
        self.island.close()

    def figure(self, place: Cores) -> LearnerFigure:
        self.syncer.pin(place.syncer)
        self._warm()
        self._rest()
        busy, began = cores.busy(), self._now()
        before, status, saved = self.island.client.counters, self.syncer.status(), self.island.saver.saved
        pairs, staleness = [], 0
        for number in range(self.setting.pairs):
            pairs.append(self._pair(place, plain_first=number % 2 == 0))
            staleness = max(staleness, self.syncer.status().units[UNIT].staleness)
        after, merges = self.island.client.counters, self.syncer.status().rounds - status.rounds
        if merges == 0:
            raise CommandError(f"nothing was merged: {self.syncer.status().message}")
        ended = self._now()
        others = (cores.busy() - busy - ended.taken(began, True)) / (ended.wall - began.wall)
        return LearnerFigure(
            **vars(rates(pairs)),
            placement=place.placement,
            learner_cores=place.learner,
            syncer_cores=place.syncer,
            preset=self.setting.preset,
            parameters=self.parameters,
            batch=self.setting.batch,
            length=self.setting.length,
            merges=merges,
            cuts=self.island.saver.saved - saved,
            staleness=staleness,
            bytes_in=after.bytes_in - before.bytes_in,
            bytes_out=after.bytes_out - before.bytes_out,
            others=max(0.0, others),
        )

    def _warm(self) -> None:
        """Compiles all programs, and determines the steps of a phase."""
        self.plain.advance(2)
        limit = WARM_STEPS + self.setting.checkpoint_interval
        while not self.island.warm:
            if self.island.loop.step >= limit:
                raise CommandError(f"not every fragment was merged and saved within {limit} steps")
            self.island.advance(4)
        began = time.monotonic()
        self.plain.advance(4)
        self.steps = self.steps or max(2, round(self.setting.seconds * 4 / (time.monotonic() - began)))

    def _pair(self, place: Cores, plain_first: bool) -> Pair:
        plain = self._plain() if plain_first else None
        began = self._now()
        self.island.advance(self.steps)
        ended = self._now()
        rested = self._rest()
        both = place.placement == "shared"
        tail = rested.taken(ended, both)
        seconds, taken = ended.wall - began.wall, rested.taken(began, both)
        plain = plain or self._plain()
        return Pair(self.steps, plain[0], seconds + tail, tail, plain[1], taken)

    def _plain(self) -> tuple[float, float]:
        began = self._now()
        self.plain.advance(self.steps)
        ended = self._now()
        return ended.wall - began.wall, ended.taken(began, False)

    def _rest(self) -> _Now:
        """Waits until both processes are idle; returns when that was."""
        deadline, now = time.monotonic() + REST_TIMEOUT, self._now()
        while time.monotonic() < deadline:
            time.sleep(REST_SECONDS)
            last, now = now, self._now()
            if max(now.learner - last.learner, now.syncer - last.syncer) <= REST * REST_SECONDS:
                return now
        raise CommandError(f"learner and syncer were not idle within {REST_TIMEOUT:g} s")

    def _now(self) -> _Now:
        return _Now(time.monotonic(), time.process_time(), self.syncer.used)

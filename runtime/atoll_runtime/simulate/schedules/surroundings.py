"""What every party of a schedule needs of the world around it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from atoll_runtime.simulate.schedules.bucket import Bucket
from atoll_runtime.simulate.schedules.checks import Checks
from atoll_runtime.simulate.schedules.scenario import Scenario, Weather


class Owner(Protocol):
    """A process: what it has planned is void once it is dead."""

    alive: bool


class Reachable(Protocol):
    """A shard or a unit through all its processes."""

    cut_off_until: float


class Surroundings(Protocol):
    """The world, as its parties use it."""

    scenario: Scenario
    now: float
    rng: random.Random
    weather: Weather
    bucket: Bucket
    checks: Checks

    @property
    def tracing(self) -> bool: ...
    def at(self, seconds: float, owner: Owner | None, job: Callable[..., None], *facts: object) -> None: ...
    def chance(self, probability: float) -> bool: ...
    def delay(self) -> float: ...
    def log(self, text: object) -> None: ...

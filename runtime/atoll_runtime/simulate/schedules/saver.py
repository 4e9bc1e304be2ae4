"""Saves a shard's parts of cuts in simulated time, as `syncer/cuts.py` does: one at a time, for as long as it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from atoll_runtime.simulate.schedules.bucket import CutPart
from atoll_runtime.simulate.schedules.surroundings import Owner, Surroundings
from atoll_runtime.sync.cuts import given_up
from atoll_runtime.sync.events import CutEnded, CutId, Event, FinalCut
from atoll_runtime.sync.machine import COORDINATOR, Syncer

GATHER_SECONDS = 20.0
POLL_SECONDS = 0.3
RETRY_SECONDS = 1.0


class Process(Owner, Protocol):
    """The shard's process."""

    machine: Syncer

    @property
    def world(self) -> Surroundings: ...
    def feed(self, event: Event) -> None: ...


class Saver:
    """`newest`: step of the newest cut that this shard's process, or its journal, knows to be whole; `merges`: how many
    it holds, where this process saved it."""

    def __init__(self, process: Process, newest: int | None) -> None:
        self.newest = newest
        self.merges: int | None = None
        self._process, self._world = process, process.world
        self._next: CutPart | None = None
        self._busy = False

    def submit(self, part: CutPart) -> None:
        """To be saved now; one that is under way is given up for it."""
        self._next = part
        if not self._busy:
            self._take()

    def _take(self) -> None:
        part, self._next = self._next, None
        self._busy = part is not None
        if part is not None:
            seconds = self._world.delay() + self._world.rng.random() * self._world.weather.saving
            self._later(seconds, self._save, part)

    def _save(self, part: CutPart) -> None:
        if self._next is not None:
            self._end(part, whole=False)
        elif self._world.chance(self._world.weather.bucket):
            self._later(RETRY_SECONDS, self._save, part)
        else:
            saved = self._world.bucket.save(part)
            self._gather(part, saved, self._world.now)

    def _gather(self, part: CutPart, saved: bool, begun: float) -> None:
        if self._next is not None:
            self._end(part, whole=False)
        elif not self._waits(part):
            self.merges = part.record["merges"] if saved else None
            self._end(part, whole=True)
        elif given_up(CutId(part.step, part.final), self.newest, self._world.now - begun, GATHER_SECONDS):
            self._end(part, whole=False)
        else:
            self._later(POLL_SECONDS, self._gather, part, saved, begun)

    def _waits(self, part: CutPart) -> bool:
        """The cut lacks something to be whole."""
        bucket = self._world.bucket
        if self._world.chance(self._world.weather.bucket):
            return True
        if part.shard != COORDINATOR:
            return part.final and part.step not in bucket.cuts
        if bucket.missing(part.step, part.final):
            return True
        before = set(bucket.cuts)
        wrong = bucket.complete(part.step, self._process.machine.cuts.clocks())
        if wrong:
            self._world.log(f"shard {part.shard}: cut {part.step} is no consistent cut: {wrong}")
            self._world.checks.refused(part.step, wrong)
            return True
        if part.step not in before:
            self._world.checks.whole(bucket.cuts[part.step])
        bucket.prune()
        return False

    def _end(self, part: CutPart, whole: bool) -> None:
        if whole:
            self.newest = part.step
        cut = CutId(part.step, part.final)
        if part.final and whole:
            self._process.feed(FinalCut(f"cut/{part.step}"))
        else:
            self._process.feed(CutEnded(cut, whole))
        if self._process.alive:
            self._take()

    def _later(self, seconds: float, job: Callable[..., None], *facts: object) -> None:
        self._world.at(seconds, self._process, job, *facts)

"""One schedule: simulated time around shards, units, network and bucket, with faults at chosen moments."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import replace

from atoll_runtime.simulate.schedules.bucket import Bucket
from atoll_runtime.simulate.schedules.checks import Checks
from atoll_runtime.simulate.schedules.content import Value, Violation
from atoll_runtime.simulate.schedules.scenario import Scenario
from atoll_runtime.simulate.schedules.shard import ShardProcess
from atoll_runtime.simulate.schedules.shardslot import ShardSlot
from atoll_runtime.simulate.schedules.surroundings import Owner, Reachable
from atoll_runtime.simulate.schedules.suspension import Suspension
from atoll_runtime.simulate.schedules.unit import UnitSlot

RESTART_SECONDS = 20.0
"""A shard or unit that was killed is there again within this time."""
CUT_OFF_SECONDS = 15.0
CRASH_SECONDS = 5.0
"""A shard that crashes while the run is being suspended does so within this time."""
STORM_SECONDS = 300.0
"""The storm is over after this time even when not all faults have come."""
CALM_SECONDS = 600.0
"""From then on the run must reach its end within this time."""


class World:
    """`run` takes a schedule to its end; the rest is for scripts that make their own."""

    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        self.scenario, self.now, self.events = scenario, 0.0, 0
        self.rng = random.Random(scenario.seed)
        self.weather = scenario.storm
        self.bucket = Bucket(scenario.rules.shards)
        self.checks = Checks(self)
        self._trace = trace
        self._heap: list[tuple[float, int, Owner | None, Callable[..., None], tuple[object, ...]]] = []
        self._count = 0
        self._faults, self._last = list(reversed(scenario.faults)), scenario.last
        self.calm_since: float | None = None
        self.suspension: Suspension | None = None
        self._initial: dict[tuple[int, int], Value] = {}
        self.shards = [ShardSlot(self, scenario.rules_of(s), sizes) for s, sizes in enumerate(scenario.sizes)]
        self.units = [UnitSlot(self, island) for island in scenario.islands]
        slots: tuple[ShardSlot | UnitSlot, ...] = (*self.shards, *self.units)
        for slot in slots:
            self.at(self.rng.random(), None, slot.start)

    @property
    def finished(self) -> bool:
        """Every shard has its final cut, every unit was told to leave."""
        return all(slot.stopped and not slot.processes for slot in self.units) and all(
            slot.process is not None and bool(slot.process.machine.final) for slot in self.shards
        )

    @property
    def pending(self) -> bool:
        """Something will happen yet."""
        return bool(self._heap)

    def run(self) -> None:
        """To the end of the run; raises `Violation` where a promise is broken, or the end does not come."""
        while (self._faults or self._last) and self.now < STORM_SECONDS and not self.finished:
            self.step()
        self.calm()
        deadline = self.now + CALM_SECONDS
        while not self.finished:
            if self.now > deadline:
                raise Violation(f"no end {CALM_SECONDS:g} s after the last fault: {self.checks.why()}")
            self.step()
        self.checks.ended()

    def run_for(self, seconds: float) -> None:
        """A while of it, whatever happens."""
        until = self.now + seconds
        while self._heap and self._heap[0][0] <= until:
            self.step()
        self.now = until

    def step(self) -> None:
        """The next event."""
        if not self._heap:
            raise Violation(f"nothing more will happen: {self.checks.why()}")
        self.now, _, owner, job, facts = heapq.heappop(self._heap)
        if owner is None or owner.alive:
            self.events += 1
            job(*facts)
            self.moment(None)

    def calm(self) -> None:
        """No more faults: everyone is started again, nothing is lost any more."""
        self._faults.clear()
        self._last = ()
        self.weather, self.calm_since = self.scenario.calm, self.now
        slots: tuple[ShardSlot | UnitSlot, ...] = (*self.shards, *self.units)
        for slot in slots:
            slot.cut_off_until = 0.0
        self.log("calm")

    def at(self, seconds: float, owner: Owner | None, job: Callable[..., None], *facts: object) -> None:
        """Plans a job of `owner`; void when it is dead by then."""
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, owner, job, facts))

    def moment(self, here: ShardProcess | None) -> None:
        """A place where a fault may fall. `here`: the shard that is carrying out effects."""
        self.checks.moments += 1
        while self._faults and self.checks.moments >= self._faults[-1][0]:
            self.strike(self._faults.pop()[1], here)

    def end_begins(self) -> None:
        """A final cut has begun: the faults that waited for it come."""
        faults = [(self.checks.moments + moment, fault) for moment, fault in self._last]
        self._faults, self._last = sorted([*self._faults, *faults], reverse=True), ()

    def strike(self, fault: str, here: ShardProcess | None = None) -> None:
        """One fault, on someone by chance."""
        shard, unit, rng = self.rng.choice(self.shards), self.rng.choice(self.units), self.rng
        self.log(f"fault: {fault} (shard {shard.number}, unit {unit.name})")
        if fault in ("crash here", "crash shard"):
            self.crash(self.shards[here.slot.number] if fault == "crash here" and here is not None else shard)
        elif fault == "lose volume":
            self.crash(shard, volume=True)
        elif fault == "kill unit":
            self.kill(unit)
        elif fault == "replace unit":
            self._replace(unit, anew=True)
        elif fault == "change target":
            self.change_target(rng.randint(-3, 12))
        elif fault == "suspend":
            self.suspend()
        elif fault == "break link":
            for process in unit.processes:
                rng.choice(rng.choice(process.links)).cut() if process.links else None
        elif fault == "cut off shard":
            self.cut_off(shard, rng.random() * CUT_OFF_SECONDS)
        elif fault == "cut off unit":
            self.cut_off(unit, rng.random() * CUT_OFF_SECONDS)
        else:
            raise ValueError(f"fault: {fault!r} is not known")

    def launch(self, shard: ShardSlot) -> ShardProcess:
        """A process of a shard, from its volume."""
        return ShardProcess(shard)

    def crash(self, shard: ShardSlot, volume: bool = False) -> None:
        """kill -9, and a start some time later."""
        if volume:
            self.checks.lost_volumes += 1
            shard.lose_volume()
        else:
            shard.crash()
        self.at(self.rng.random() ** 2 * RESTART_SECONDS, None, shard.start)

    def kill(self, unit: UnitSlot) -> None:
        """All hosts die; the next incarnation comes some time later."""
        unit.kill()
        self.at(self.rng.random() ** 2 * RESTART_SECONDS, None, self._replace, unit)

    def change_target(self, more: int) -> None:
        """Every shard is started anew with a target of so many more steps, or ten times as many tokens: the last shard
        first, the others one after another."""
        seconds = 0.0
        for shard in reversed(self.shards):
            steps, tokens = shard.rules.target_steps, shard.rules.target_tokens
            shard.rules = replace(
                shard.rules,
                target_steps=None if steps is None else max(1, steps + more),
                target_tokens=None if tokens is None else max(1, tokens + 10 * more),
            )
            self.at(seconds, None, self.crash, shard)
            seconds += self.rng.random() * RESTART_SECONDS

    def suspend(self) -> None:
        """Units leave, a cut of everything is taken, units come back; a shard may crash meanwhile."""
        if self.suspension is not None:
            return
        for unit in self.units:
            unit.kill()
        self.suspension = Suspension(self)
        if self.chance(0.5):
            self.at(self.rng.random() * CRASH_SECONDS, None, self.crash, self.rng.choice(self.shards))

    def resume(self) -> None:
        """The suspension is over."""
        self.suspension = None
        for unit in self.units:
            self._replace(unit)

    def cut_off(self, slot: ShardSlot | UnitSlot, seconds: float) -> None:
        """Nobody reaches it for a while."""
        slot.cut_off_until = self.now + seconds
        for shard in self.shards:
            if shard.process is not None:
                for channel in list(shard.process.channels):
                    if slot is shard or channel.unit == getattr(slot, "name", None):
                        channel.cut()

    def reachable(self, one: Reachable, other: Reachable) -> bool:
        return self.now >= max(one.cut_off_until, other.cut_off_until)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def delay(self) -> float:
        """Seconds of a message, a transfer, or a call to the bucket."""
        mean = self.weather.latency * 2 * self.rng.random()
        return mean * 50 * self.rng.random() if self.chance(self.weather.slow) else mean

    def initial(self, shard: int, p: int) -> Value:
        """The initial model's part."""
        return self._initial.setdefault((shard, p), Value(shard, p, "initial", 0))

    def log(self, text: object) -> None:
        if self._trace is not None:
            self._trace(f"{self.now:9.3f} {text}")

    @property
    def tracing(self) -> bool:
        return self._trace is not None

    def _replace(self, unit: UnitSlot, anew: bool = False) -> None:
        if self.suspension is None and (anew or not (unit.running or unit.stopped)):
            unit.start()

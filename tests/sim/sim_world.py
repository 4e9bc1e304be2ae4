"""One schedule: shards, units, network and bucket in simulated time, with faults at chosen moments."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from sim_bucket import SimBucket
from sim_checks import Checks
from sim_disk import SimDisk
from sim_scenario import Scenario
from sim_shard import ShardProcess, ShardSlot
from sim_suspension import Suspension
from sim_unit import UnitSlot
from sim_values import Registry, Value, Violation

from atoll_runtime.simulate.blank import blank_layout
from atoll_runtime.simulate.eventloop import Process, SimLoop
from atoll_runtime.simulate.network import Channel

RESTART_SECONDS = 20.0
"""A shard or unit that was killed starts again within this time."""
CUT_OFF_SECONDS = 15.0
HANG_SECONDS = 40.0
"""A unit that hangs with its sessions open trains again within this time."""
FREEZE_SECONDS = 30.0
"""A frozen process goes on within this time."""
FULL_SECONDS = 40.0
"""A full disk has room again within this time."""
AWAY_SECONDS = 200.0
"""The bucket answers again within this time."""
CRASH_SECONDS = 5.0
"""A shard that crashes while the run is being suspended does so within this time."""
STORM_SECONDS = 300.0
"""The storm ends after this time even if faults are left."""
CALM_SECONDS = 1200.0
"""After the storm the run must reach its end within this time. 50 steps take 700 s if each round needs four attempts,
because a liar answers first and is refused."""
LATE_SECONDS = 30.0
"""What was under way when everyone left has arrived after this time."""
WORK_SECONDS = 0.05
"""Longest time of a job off the event loop: a merge, a write, a call to the bucket."""


class World:
    """`run` takes a schedule to its end. Scripts with their own course use the other methods."""

    open: ClassVar[list[World]] = []
    """The newest world, unless it has been closed."""

    def __init__(self, scenario: Scenario, trace: Callable[[str], None] | None = None) -> None:
        for other in World.open:
            other.close()
        World.open = [self]
        self.scenario, self.disk_faults = scenario, 0
        self.rng = random.Random(scenario.seed)
        random.seed(scenario.seed)  # back-offs
        self.weather = scenario.storm
        self.registry = Registry()
        self.loop = SimLoop(self._seconds, self.moment)
        Violation.found = self.loop.failures
        self.bucket = SimBucket(self)
        self.checks = Checks(self)
        self._trace = trace
        self._faults, self._last = list(reversed(scenario.faults)), scenario.last
        self.calm_since: float | None = None
        self._trouble_until = 0.0
        """When the last fault ends that calm weather does not end."""
        self.suspension: Suspension | None = None
        self._initial: dict[tuple[int, int], Value] = {}
        self.layout, self.run_contract = blank_layout(scenario.sizes), scenario.contract
        self.shards = [
            ShardSlot(self, scenario.rules_of(s), SimDisk(self.rng, scenario.volume))
            for s in range(scenario.rules.shards)
        ]
        self.units = [UnitSlot(self, island) for island in scenario.islands]
        for shard in self.shards:
            self.at(self.rng.random(), None, shard.start)
        for unit in self.units:
            self.at(self.rng.random(), None, self.start_unit, unit)

    @property
    def now(self) -> float:
        return self.loop.now

    @property
    def events(self) -> int:
        return self.loop.steps

    @property
    def finished(self) -> bool:
        """Whether every shard has its final cut and every unit was told to leave."""
        for unit in self.units:  # called before each callback
            if unit.processes or not unit.stopped:
                return False
        return all(
            slot.process is not None and slot.process.service is not None and bool(slot.process.machine.final)
            for slot in self.shards
        )

    def run(self) -> None:
        """Go on to the end of the run. Raise `Violation` if a promise is broken or the end does not come."""
        self.run_while(
            lambda: (self._faults or self._last) and self.now < STORM_SECONDS and not self.finished
        )
        self.calm()
        deadline = self.now + CALM_SECONDS
        self._until_finished(deadline)
        self.run_for(LATE_SECONDS)
        self._until_finished(deadline + LATE_SECONDS)  # a shard may restart with another target meanwhile
        self.checks.ended()

    def _until_finished(self, deadline: float) -> None:
        self.run_while(lambda: self.now <= deadline and not self.finished)
        if not self.finished:
            raise Violation(f"no end {CALM_SECONDS:g} s after the last fault: {self.checks.why()}")

    def run_for(self, seconds: float) -> None:
        """Go on for this time, whatever happens."""
        self.loop.run_for(seconds)

    def close(self) -> None:
        """End everything in this world."""
        slots: tuple[ShardSlot | UnitSlot, ...] = (*self.shards, *self.units)
        for slot in slots:
            for process in slot.processes:
                process.alive = False
        self.loop.close()
        World.open = []

    def run_while(self, more: Callable[[], object]) -> None:
        """Go on while `more` is true."""
        if not self.loop.run_while(more):
            raise Violation(f"nothing more will happen: {self.checks.why()}")

    def calm(self) -> None:
        """End all faults: everyone is reachable again, and nothing more is lost."""
        self._faults.clear()
        self._last = ()
        self.weather, self.calm_since = self.scenario.calm, max(self.now, self._trouble_until)
        slots: tuple[ShardSlot | UnitSlot, ...] = (*self.shards, *self.units)
        for slot in slots:
            slot.cut_off_until = 0.0
        for shard in self.shards:
            shard.parted_until = 0.0
        self.log("calm")

    def at(self, seconds: float, owner: Process | None, job: Callable[..., Any], *facts: object) -> None:
        """Plan a job of `owner`. It is dropped if the owner is dead by then."""
        self.at_time(self.now + seconds, owner, job, *facts)

    def at_time(self, when: float, owner: Process | None, job: Callable[..., Any], *facts: object) -> None:
        """The same at a given time. Jobs of the same time run in the order in which they were planned."""
        self.loop.plan(when, owner, job, *facts)

    def moment(self, here: Process | None) -> None:
        """A moment at which a fault may happen. `here`: the process that is working."""
        self.checks.moments += 1
        while self._faults and self.checks.moments >= self._faults[-1][0]:
            self.strike(self._faults.pop()[1], here)

    def _seconds(self, job: Callable[..., Any]) -> float:
        """How long a job off the event loop takes. `asyncio.to_thread` may have wrapped it."""
        seconds = self.rng.random() * WORK_SECONDS * (50 if self.chance(self.weather.slow) else 1)
        called = job.args[0] if isinstance(job, functools.partial) and job.args else job
        saves = getattr(called, "__name__", "") == "_save_now"
        return seconds + (self.rng.random() * self.weather.saving if saves else 0.0)

    def end_begins(self) -> None:
        """A final cut has begun. Add the faults that waited for it."""
        faults = [(self.checks.moments + moment, fault) for moment, fault in self._last]
        self._faults, self._last = sorted([*self._faults, *faults], reverse=True), ()

    def strike(self, fault: str, here: Process | None = None) -> None:
        """Cause one fault for a random party."""
        shard, unit, rng = self.rng.choice(self.shards), self.rng.choice(self.units), self.rng
        self.log(f"fault: {fault} (shard {shard.number}, unit {unit.name})")
        if fault in ("crash here", "power") and isinstance(here, ShardProcess):
            self.crash(here.slot, fault)
        elif fault in ("crash here", "crash shard", "power", "lose volume"):
            self.crash(shard, fault)
        elif fault == "kill unit":
            self.kill(unit)
        elif fault == "replace unit":
            self.start_unit(unit, anew=True)
        elif fault == "change target":
            self.change_target(rng.randint(-3, 12))
        elif fault == "suspend":
            self.suspend()
        elif fault == "break link":
            for process in unit.processes:
                if open_ := channels(process):
                    rng.choice(open_).cut()
        elif fault == "disk":
            shard.disk.failing = True
            self.disk_faults += 1
        elif fault == "cut off shard":
            self.cut_off(shard, rng.random() * CUT_OFF_SECONDS)
        elif fault == "part shards":
            self.part(rng.choice(self.shards[1:] or self.shards), rng.random() * CUT_OFF_SECONDS)
        elif fault == "hang unit":
            unit.hung_until = max(unit.hung_until, self.now + rng.random() * HANG_SECONDS)
        elif fault == "cut off unit":
            self.cut_off(unit, rng.random() * CUT_OFF_SECONDS)
        elif fault == "crash loop":
            self.crash_again(rng.choice((shard, unit)), rng.randint(3, 8))
        elif fault == "freeze":
            self.freeze(rng.choice((shard, unit)), rng.random() * FREEZE_SECONDS)
        elif fault == "full disk":
            shard.disk.full_until = self._trouble(rng.random() * FULL_SECONDS)
            self.disk_faults += 1
        elif fault == "bucket away":
            self.bucket.away_until = self._trouble(rng.random() * AWAY_SECONDS)
        elif fault == "unit leaves":
            self.leave(unit)
        else:
            raise ValueError(f"fault: {fault!r} is not known")

    def crash(self, shard: ShardSlot, fault: str = "crash") -> None:
        """kill -9, perhaps of the whole machine or with the loss of its volume. It starts again some time later."""
        shard.crash(power=fault == "power")
        if fault == "lose volume":
            self.checks.lost_volumes += 1
            shard.disk.wipe()
        self.at(self.rng.random() ** 2 * RESTART_SECONDS, None, shard.start)

    def kill(self, unit: UnitSlot) -> None:
        """Kill all hosts. The next incarnation starts some time later."""
        unit.kill()
        self.at(self.rng.random() ** 2 * RESTART_SECONDS, None, self.start_unit, unit)

    def crash_again(self, slot: ShardSlot | UnitSlot, times: int) -> None:
        """Kill a party within a second after each of its next starts."""
        stop: Callable[..., None] = self.crash if isinstance(slot, ShardSlot) else self.kill
        start = slot.start if isinstance(slot, ShardSlot) else functools.partial(self.start_unit, slot)
        stop(slot)
        for second in range(times):
            self.at(second + self.rng.random(), None, start)
            self.at(second + 1, None, stop, slot)
        self._trouble(times)

    def freeze(self, slot: ShardSlot | UnitSlot, seconds: float) -> None:
        """No callback of the party runs for a while. Its sessions stay open."""
        until = self._trouble(seconds)
        for process in slot.processes:
            process.frozen_until = max(process.frozen_until, until)  # an earlier end would reorder callbacks

    def leave(self, unit: UnitSlot) -> None:
        """Remove a unit for good if the others suffice for a quorum."""
        rest = [each for each in self.units if each is not unit and not each.stopped and not each.island.lie]
        if len(rest) >= max(1, self.scenario.rules.quorum):
            unit.stopped = True
            unit.kill()

    def _trouble(self, seconds: float) -> float:
        """When a fault of this duration ends, which calm weather does not end."""
        self._trouble_until = max(self._trouble_until, self.now + seconds)
        return self.now + seconds

    def change_target(self, more: int) -> None:
        """Restart every shard with a target of `more` more steps, or of ten times as many more tokens. The last shard
        restarts first, and the others follow one after another."""
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
        """Units leave, a cut of everything is taken, and units come back. A shard may crash meanwhile."""
        if self.suspension is not None:
            return
        for unit in self.units:
            unit.kill()
        self.suspension = Suspension(self)
        if self.chance(0.5):
            self.at(self.rng.random() * CRASH_SECONDS, None, self.crash, self.rng.choice(self.shards))

    def resume(self) -> None:
        """End the suspension and start the units again."""
        self.suspension = None
        for unit in self.units:
            self.start_unit(unit)

    def start_unit(self, unit: UnitSlot, anew: bool = False) -> None:
        """Start a unit's next incarnation, unless one runs and need not be replaced (`anew`)."""
        if self.suspension is None and (anew or not (unit.running or unit.stopped)):
            unit.start()

    def cut_off(self, slot: ShardSlot | UnitSlot, seconds: float) -> None:
        """Make a shard or unit unreachable for a while."""
        slot.cut_off_until = self.now + seconds
        for shard in self.shards:
            if shard.process is not None:
                for channel in channels(shard.process):
                    if slot is shard or channel.client.slot is slot:
                        channel.cut()

    def part(self, shard: ShardSlot, seconds: float) -> None:
        """Break the connection between a shard and shard 0 for a while. Units reach both."""
        shard.parted_until = self.now + seconds
        if shard.process is not None:
            for channel in channels(shard.process):
                if channel.client is shard.process:
                    channel.cut()

    def reachable(self, client: UnitSlot | ShardSlot, shard: ShardSlot) -> bool:
        parted = client.parted_until if isinstance(client, ShardSlot) else 0.0
        return self.now >= max(client.cut_off_until, shard.cut_off_until, parted)

    def chance(self, probability: float) -> bool:
        return probability > 0 and self.rng.random() < probability

    def delay(self) -> float:
        """Seconds of a message, a transfer, or a call to the bucket."""
        mean = self.weather.latency * 2 * self.rng.random()
        return mean * 50 * self.rng.random() if self.chance(self.weather.slow) else mean

    def lie_of(self, unit: str) -> str:
        """See `Island.lie`."""
        return next(island.lie for island in self.scenario.islands if island.name == unit)

    def initial(self, shard: int, p: int) -> Value:
        """The part of the initial model."""
        return self._initial.setdefault((shard, p), Value(shard, p, "initial", 0))

    def empty(self, shard: int, p: int) -> Value:
        """The value that represents a fragment without elements."""
        return self._initial.setdefault((shard, p), Value(shard, p, "empty", 0))

    def log(self, text: object) -> None:
        if self._trace is not None:
            self._trace(f"{self.now:9.3f} {text}")

    @property
    def tracing(self) -> bool:
        return self._trace is not None


def channels(process: Process) -> list[Any]:
    """The open sessions of a process."""
    return [each for each in process.at_death if isinstance(each, Channel)]

"""A shard's process in simulated time: it drives `Syncer` as `syncer/driver.py` does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from atoll_runtime.simulate.schedules.bucket import CutPart
from atoll_runtime.simulate.schedules.content import Delta, Value
from atoll_runtime.simulate.schedules.network import Channel
from atoll_runtime.simulate.schedules.saver import Saver
from atoll_runtime.simulate.schedules.surroundings import Surroundings
from atoll_runtime.simulate.schedules.volume import Volume, new_lineage
from atoll_runtime.sync.events import (
    CutId,
    CutOrdered,
    Declined,
    Effect,
    Event,
    Evict,
    Heard,
    Left,
    Marked,
    Merge,
    Merged,
    MergeFailed,
    Note,
    Persist,
    Persisted,
    Publish,
    RecordCut,
    Release,
    Remember,
    RememberJoin,
    RoundId,
    SendClock,
    SendMarkers,
    SendPull,
    StopAll,
    Tick,
    Upload,
    Wake,
)
from atoll_runtime.sync.rules import Rules
from atoll_runtime.syncer import hosts
from atoll_runtime.syncer.recovery import resumed
from atoll_runtime.syncer.sessions import Sessions
from atoll_runtime.transport.messages import (
    Fenced,
    FetchHead,
    Hello,
    Mark,
    PushHead,
    Report,
    Stop,
    Welcome,
)

MERGE_SECONDS = WRITE_SECONDS = 0.05
"""Longest time of a merge, and of a write."""

HOP_SECONDS = 0.003
"""From the worker back to the event loop."""


class World(Surroundings, Protocol):
    """What a shard's process needs of the world."""

    def initial(self, shard: int, p: int) -> Value: ...
    def moment(self, here: ShardProcess | None) -> None: ...
    def end_begins(self) -> None: ...


class Slot(Protocol):
    """The shard of a process."""

    rules: Rules
    sizes: tuple[int, ...]
    volume: Volume | None
    lineages: int

    @property
    def world(self) -> World: ...
    @property
    def number(self) -> int: ...
    @property
    def process(self) -> ShardProcess | None: ...


class ShardProcess:
    """From one start to the next crash."""

    def __init__(self, slot: Slot) -> None:
        self.slot, self.world, self.alive = slot, slot.world, True
        self.sessions = Sessions()
        self.channels: dict[Channel, None] = {}
        self.held: dict[RoundId, dict[tuple[str, int], Delta]] = {}
        self.fresh: dict[RoundId, Value] = {}
        self._free = self._written_at = 0.0
        self._wake = -1.0
        self.resumed = slot.volume is not None
        if slot.volume is None:
            slot.lineages += 1
            slot.volume, self.machine = new_lineage(
                slot.rules,
                slot.sizes,
                f"L{slot.lineages}",
                self.world.bucket.newest(),
                lambda p: self.world.initial(slot.number, p),
            )
        else:
            read = json.loads(json.dumps(slot.volume.record))
            self.machine = resumed(slot.rules, slot.sizes, read, self.world.bucket.cuts.__contains__)
            slot.volume.write(self.machine.record(), slot.volume.newest_cut)
        self.volume = slot.volume
        self.machine.rounds.lineage = self.volume.lineage
        self.state = list(self.volume.values)
        self.memory = list(self.state)
        self.saver = Saver(self, self.volume.newest_cut)

    def __str__(self) -> str:
        return f"shard {self.slot.number}"

    def begin(self) -> None:
        """A run that is at its target goes on to its end; the first cut is what units are seeded from."""
        self.world.checks.started(self)
        self.world.log(f"{self} starts: step {self.machine.step}, versions {self.machine.versions}")
        if self.saver.newest is None:
            self.feed(CutOrdered(CutId(self.machine.orderable)))
        self.feed(Tick())

    def die(self) -> None:
        self.alive = False
        for channel in list(self.channels):
            channel.cut()

    def feed(self, event: Event) -> None:
        """One step of the machine; a crash may come between any two of its effects."""
        if not self.alive:
            return
        if self.world.tracing:
            self.world.log(f"{self} < {event}")
        effects = self.machine.handle(event, self.world.now)
        self.world.checks.handled(self, event)
        for effect in effects:
            if self.world.tracing:
                self.world.log(f"{self} > {effect}")
            self._carry_out(effect)
            self.world.moment(self)
            if not self.alive:
                return

    def receive(self, channel: Channel, message: Hello | Report | Mark) -> None:
        """A message of a host."""
        match message:
            case Hello():
                self._greet(channel, message)
            case Report(clocks=clocks):
                if clocks:
                    self.feed(Heard(channel.unit, clocks))
                self.feed(hosts.reported(channel, message))
            case Mark(cut, trained):
                self.feed(Marked(channel.unit, channel.incarnation, channel.host, cut, trained))

    def gone(self, channel: Channel) -> None:
        """A session is over."""
        self.channels.pop(channel, None)
        if self.sessions.remove(channel):
            self.feed(Left(channel.unit, channel.incarnation, channel.host))

    def admit(self, head: PushHead) -> str:
        """Why a part is not wanted, before its body comes."""
        part = hosts.part_of(head)
        refusal = self.machine.admit(part)
        if not refusal and self.world.chance(self.world.weather.merges):
            refusal = "out of memory"
        if refusal:
            self.feed(Declined(part, refusal))
        else:
            self.feed(Upload(part, True))
        return refusal

    def deliver(self, head: PushHead, delta: Delta) -> None:
        """The body has come."""
        part = hosts.part_of(head)
        refusal = self.machine.admit(part)
        if refusal:
            self.feed(Declined(part, refusal))
        else:
            self.held.setdefault(head.round, {})[head.unit, head.host] = delta
            self.feed(part)
        self.feed(Upload(part, False))

    @property
    def current(self) -> bool:
        """The newest cut holds every merge of this shard."""
        return self.saver.merges == self.machine.rounds.merges

    def serve(self, p: int) -> tuple[FetchHead, Value]:
        """The newest durable version of a fragment."""
        value = self.state[p]
        self.world.checks.seen(value)
        return FetchHead(p, value.version, 0, cut=self.machine.cuts.newest), value

    def _greet(self, channel: Channel, hello: Hello) -> None:
        known = self.machine.units.get(hello.unit)
        if known is not None and hello.incarnation < known.incarnation:
            channel.refuse(Fenced(known.incarnation))
            return
        self.channels[channel] = None
        self.sessions.add(channel)
        self.feed(hosts.joined(hello))
        if self.alive:
            self._when_durable(self._welcome, channel)

    def _welcome(self, channel: Channel) -> None:
        if self.machine.final:
            channel.refuse(Stop(self.machine.step, self.machine.clock, self.machine.cuts.newest))
            return
        unit = self.machine.units[channel.unit]
        self.world.checks.welcomed(self, channel.unit, channel.incarnation)
        for value in self.state:
            self.world.checks.seen(value)
        channel.welcome(
            Welcome(
                self.volume.lineage,
                self.machine.step,
                tuple(value.version for value in self.state),
                unit.merged_cursor,
                unit.merged_step,
                self.machine.cuts.newest,
            )
        )

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case SendPull() | SendMarkers() | SendClock() | Evict():
                self.sessions.carry_out(effect)
            case Merge():
                self._merge(effect)
            case Release(round_id, unit):
                parts = self.held.get(round_id, {})
                for key in [key for key in parts if unit is None or key[0] == unit]:
                    del parts[key]
                if not parts:
                    self.held.pop(round_id, None)
                self.sessions.carry_out(effect)
            case Persist(round_id, record):
                self._write(self._persisted, round_id, record)
            case Remember(record):
                self._write(self._remembered, record)
            case RememberJoin():
                self._write(self._remembered, self.machine.record())
            case Publish(p, version):
                self.world.checks.published(self, p, version)
                self.sessions.carry_out(effect)
            case RecordCut(cut, record):
                self._record(cut, record)
            case StopAll(step):
                self._when_durable(self._stop_all, step)
            case Note(entry):
                self.world.checks.noted(self, entry)
            case Wake(at):
                if at != self._wake:
                    self._wake = at
                    self.world.at(max(0.0, at - self.world.now), self, self._tick, at)

    def _tick(self, at: float) -> None:
        if at == self._wake:
            self._wake = -1.0
            self.feed(Tick())

    def _stop_all(self, step: int) -> None:
        self.sessions.send_all(Stop(step, self.machine.clock, self.machine.cuts.newest))

    def _merge(self, effect: Merge) -> None:
        deltas = self.world.checks.frozen(self, effect, self.held.get(effect.round, {}))
        self._work(self.world.rng.random() * MERGE_SECONDS, self._merged, effect.round, deltas)

    def _merged(self, round_id: RoundId, deltas: tuple[Delta, ...]) -> None:
        if self.world.chance(self.world.weather.merges):
            self.feed(MergeFailed(round_id, "not finite"))
            return
        p = round_id.fragment
        current = {name: unit.incarnation for name, unit in self.machine.units.items()}
        value = self.memory[p].merge(round_id.step, deltas, current)
        self.fresh[round_id] = self.memory[p] = value
        self.feed(Merged(round_id, self.world.now))

    def _persisted(self, round_id: RoundId, record: Mapping[str, Any]) -> None:
        value = self.fresh.pop(round_id)
        self.volume.values[round_id.fragment] = value
        self.volume.write(record, self.saver.newest)
        self.world.at(HOP_SECONDS, self, self._publish, round_id, value)

    def _publish(self, round_id: RoundId, value: Value) -> None:
        self.state[round_id.fragment] = value
        self.feed(Persisted(round_id))

    def _remembered(self, record: Mapping[str, Any]) -> None:
        self.volume.write(record, self.saver.newest)

    def _record(self, cut: CutId, record: Mapping[str, Any]) -> None:
        part = CutPart(cut.step, self.slot.number, cut.final, self.volume.lineage, tuple(self.state), record)
        self.world.checks.recorded(self, part)
        if cut.final:
            self.world.end_begins()
        self._when_durable(self.saver.submit, part)  # a final cut that stands must not be forgotten

    def _work(self, seconds: float, job: Callable[..., None], *facts: object) -> None:
        """Merges and writes are done by one worker, in order."""
        self._free = max(self.world.now, self._free) + seconds
        self.world.at(self._free - self.world.now, self, job, *facts)

    def _write(self, job: Callable[..., None], *facts: object) -> None:
        seconds = self.world.rng.random() * WRITE_SECONDS
        if self.world.chance(self.world.weather.slow):
            seconds *= 50
        self._work(seconds, job, *facts)
        self._written_at = self._free

    def _when_durable(self, job: Callable[..., None], *facts: object) -> None:
        """When all that was handed to the disk so far is there."""
        self.world.at(max(0.0, self._written_at - self.world.now), self, job, *facts)

"""Sessions between hosts and shards: first in, first out until they break, each side noticing in its own time."""

from __future__ import annotations

from typing import Protocol

from atoll_runtime.simulate.schedules.surroundings import Owner, Surroundings
from atoll_runtime.syncer.sessions import Session
from atoll_runtime.transport.messages import Down, Hello, Mark, Report

NOTICE_SECONDS = 2.0
"""A broken session is noticed within this time, by each side."""


class Unit(Owner, Protocol):
    """The incarnation whose host has the session."""

    incarnation: int

    @property
    def name(self) -> str: ...


class End(Protocol):
    """The host's end."""

    host: int

    @property
    def unit(self) -> Unit: ...
    @property
    def world(self) -> Surroundings: ...
    def lost(self, channel: Channel) -> None: ...
    def receive(self, channel: Channel, message: Down) -> None: ...


class Process(Owner, Protocol):
    """The shard's end."""

    def receive(self, channel: Channel, message: Hello | Report | Mark) -> None: ...
    def gone(self, channel: Channel) -> None: ...


class Channel(Session):
    """One session, as both ends hold it."""

    def __init__(self, end: End, process: Process | None) -> None:
        self.unit, self.incarnation, self.host = end.unit.name, end.unit.incarnation, end.host
        self.open, self.welcomed = True, False
        self._end, self._world, self._process = end, end.world, process
        self._up_at = self._down_at = 0.0
        self._waiting: list[Down | None] = []

    def up(self, message: Hello | Report | Mark) -> None:
        """The host says something. Nobody there, or a wire that breaks, ends the session."""
        world = self._world
        if not self.open:
            return
        if self._process is None or not self._process.alive or world.chance(world.weather.breaks):
            self.cut()
            return
        self._up_at = max(self._up_at, world.now + world.delay())
        world.at(self._up_at - world.now, self._process, self._arrive_up, message)

    def send(self, message: Down | None) -> None:
        """The shard says something; what comes before the welcome waits for it."""
        if self.welcomed:
            self.down(message)
        else:
            self._waiting.append(message)

    def welcome(self, message: Down) -> None:
        """The shard's first answer, and what waited for it."""
        self.welcomed = True
        self.down(message)
        for waiting in self._waiting:
            self.down(waiting)
        self._waiting.clear()

    def refuse(self, message: Down) -> None:
        """The shard's only answer."""
        self.welcomed = True
        self.down(message)
        self.down(None)

    def down(self, message: Down | None) -> None:
        world = self._world
        if not self.open:
            return
        if world.chance(world.weather.breaks):
            self.cut()
            return
        self._down_at = max(self._down_at, world.now + world.delay())
        world.at(self._down_at - world.now, None, self._arrive_down, message)
        if message is None and self._process is not None:
            world.at(world.delay(), self._process, self._process.gone, self)

    def cut(self) -> None:
        """The wire breaks: what is under way on it is lost."""
        if not self.open:
            return
        self.open = False
        world = self._world
        world.at(world.rng.random() * NOTICE_SECONDS, self._end.unit, self._end.lost, self)
        if self._process is not None:
            world.at(world.rng.random() * NOTICE_SECONDS, self._process, self._process.gone, self)

    def _arrive_up(self, message: Hello | Report | Mark) -> None:
        if self.open and self._process is not None:
            self._process.receive(self, message)

    def _arrive_down(self, message: Down | None) -> None:
        if not self.open or not self._end.unit.alive:
            return
        if message is None:
            self.open = False
            self._end.lost(self)
        else:
            self._end.receive(self, message)

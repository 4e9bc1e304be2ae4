"""One state machine of the syncer. Tests give it one event after another."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self, TypeVar

from atoll_runtime.protocol.effects import Effect, Merge, Remember, Wake
from atoll_runtime.protocol.events import Event, Merged, Persisted, Said, Tick
from atoll_runtime.protocol.identifiers import RoundId
from atoll_runtime.protocol.messages import Header, Hello, Part, Report
from atoll_runtime.protocol.restoring import begin
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.transport.messages import PROTOCOL

LONE = Rules(
    fragments=1,
    interval=1,
    overlap=1,
    quorum=1,
    grace_fraction=0.0,
    grace_steps=1.0,
    target_steps=10**6,
    target_tokens=None,
)
"""Rules with one fragment and a quorum of one unit."""
T = TypeVar("T", bound=Effect)


def joined(unit: str, incarnation: int = 1, host: int = 0, hosts: int = 1) -> Hello:
    return Hello(PROTOCOL, "uid", unit, incarnation, host, hosts, "", "bf16", 0, "")


def reported(unit: str, step: int, seconds: float = 1.0, tokens: int = 10) -> Said:
    return Said(unit, 1, Report(step, step, tokens * step, 1.0, seconds))


def offered(part: Part, *link: float) -> Header:
    """A header. `link`: seconds, round trip and turn of the link."""
    return Header(part, "bf16", 0, *link)


class Story:
    """Units of one host that train ten tokens a step. With `merges`, merges and writes take no time."""

    merges = True

    def __init__(self, rules: Rules = LONE, units: str = "", version: int = 0) -> None:
        """Every fragment has ten elements and starts at this version."""
        self.machine = begin(rules, (10,) * rules.fragments, [version] * rules.fragments, version)
        self.now, self.wake = 0.0, math.inf
        self.effects: list[Effect] = []
        self.remembered: dict[str, Any] = {}
        """The content of the journal."""
        self.steps: dict[str, int] = {}
        """Steps of each unit that has joined."""
        for unit in units:
            self.join(unit)

    def tell(self, *events: Event, now: float | None = None) -> Self:
        self.now, pending = self.now if now is None else now, list(events)
        while pending:
            for effect in self.machine.handle(pending.pop(0), self.now):
                self.effects.append(effect)
                match effect:
                    case Wake(at):
                        self.wake = at
                    case Remember():
                        self.remembered = self.machine.record()
                    case Merge(round_id) if self.merges:
                        pending = [Merged(round_id), Persisted(round_id), *pending]
        return self

    def join(self, unit: str) -> None:
        self.steps[unit] = 0
        self.tell(joined(unit))

    def step(self, unit: str, seconds: float = 1.0) -> None:
        """The unit reports another step."""
        self.steps[unit] += 1
        self.tell(reported(unit, self.steps[unit], seconds))

    def run(self, seconds: int, units: str = "") -> int:
        """Run for `seconds`. In each, these units, or all, make a step. Return by how much the clock advanced."""
        begun = self.machine.step
        for _ in range(seconds):
            self.now += 1.0
            if self.now >= self.wake:
                self.tell(Tick())
            for unit in units or list(self.steps):
                self.step(unit)
        return self.machine.step - begun

    def asked(self, kind: type[T]) -> list[T]:
        """The effects of this kind so far."""
        return [each for each in self.effects if isinstance(each, kind)]

    def round(self, p: int = 0) -> RoundId:
        """The open round of a fragment."""
        return next(round_id for round_id in self.machine.rounds.in_flight if round_id.fragment == p)

    def part(self, unit: str, p: int = 0, **changes: Any) -> Part:
        """The unit's answer to the open round, with all work since its newest merged one and with `changes` applied."""
        n, anchor = self.steps[unit], self.machine.versions[p]
        made = max(1, n - self.machine.units[unit].last_merged_step.get(p, 0))
        honest = Part(unit, 1, 0, 1, self.round(p), anchor, made, 10 * made, n, n, 0, 10, 10, 10 * n)
        return replace(honest, **changes)

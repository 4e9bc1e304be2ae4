"""What a round waits for on a slow link: a part that is under way, and no longer than it can be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from lone_shard import LONE

from atoll_runtime.sync.events import (
    Event,
    Joined,
    Left,
    Merge,
    Merged,
    Part,
    Persisted,
    Reported,
    RoundId,
    Tick,
    Upload,
    Wake,
)
from atoll_runtime.sync.machine import Syncer
from atoll_runtime.sync.rules import Rules

RULES = replace(LONE, interval=4, cut_interval=10**6)


@dataclass
class Shard:
    """Units a, and b where the quorum is two, which make a step a second and say so."""

    rules: Rules = RULES
    now: float = 0.0
    steps: int = 0
    taken: int = 0
    """Steps when the last merge was taken over."""
    wake: float = 0.0

    def __post_init__(self) -> None:
        self.machine = Syncer.begin(self.rules, (10,), [0])
        for unit in self.units:
            self.feed(Joined(unit, 1, 0, 1, 0, ""))
        self.run(8)

    @property
    def units(self) -> str:
        return "ab"[: self.rules.quorum]

    @property
    def round(self) -> RoundId:
        (found,) = self.machine.rounds.held
        return found

    def feed(self, event: Event) -> None:
        """The disk and the merge take no time."""
        for effect in self.machine.handle(event, self.now):
            match effect:
                case Wake(at):
                    self.wake = at
                case Merge(round_id):
                    self.feed(Merged(round_id, 0.0))
                    self.feed(Persisted(round_id))
                    self.taken = self.steps

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now += 1
            self.steps += 1
            for unit in self.units:
                self.feed(Reported(unit, 1, 0, self.steps, self.steps, 10 * self.steps, 1.0, 1.0, 0))

    def answer(self, unit: str = "a") -> Part:
        n, made, anchor = self.steps, self.steps - self.taken, self.machine.versions[0]
        return Part(unit, 1, 0, 1, self.round, anchor, made, 10 * made, n, n, 0, 10, 10, 10 * n)

    def upload(self, seconds: int, unit: str = "a") -> None:
        """A part that takes so long."""
        part = self.answer(unit)
        assert self.machine.admit(part) == ""
        self.feed(Upload(part, True))
        self.run(seconds)
        if self.machine.admit(part) == "":
            self.feed(part)
        self.feed(Upload(part, False))


@pytest.mark.parametrize("seconds", [20, 100, 250, 590])
def test_every_part_that_is_sent_over_a_slow_link_is_merged(seconds: int) -> None:
    shard = Shard()
    for merges in range(1, 4):
        shard.upload(seconds)
        assert shard.machine.rounds.merges == merges
        shard.run(8)
    assert shard.machine.units["a"].dropped == 0


def test_a_round_waits_for_the_second_of_two_slow_parts_too() -> None:
    shard = Shard(replace(RULES, quorum=2))
    first = shard.answer("a")
    shard.feed(Upload(first, True))
    shard.run(20)
    late = shard.answer("b")
    shard.feed(Upload(late, True))
    shard.run(80)
    for part in (first, late):
        shard.feed(part)
        shard.feed(Upload(part, False))
    assert shard.machine.rounds.merges == 1


def test_a_part_that_never_comes_is_not_waited_for_longer_than_a_transfer_may_take() -> None:
    shard = Shard()
    shard.feed(Upload(shard.answer(), True))
    shard.run(int(RULES.patience + RULES.transfer) - 10)
    assert shard.round.attempt == 0 and shard.wake > shard.now
    shard.run(20)
    assert shard.round.attempt == 1


def ended(shard: Shard, part: Part) -> Event:
    return Upload(part, False)


def gone(shard: Shard, part: Part) -> Event:
    return Left("a", 1, 0)


def replaced(shard: Shard, part: Part) -> Event:
    return Joined("a", 2, 0, 1, 0, "")


@pytest.mark.parametrize("happening", [ended, gone, replaced])
def test_a_part_that_is_under_way_no_more_holds_up_nothing(happening: Any) -> None:
    shard = Shard()
    part = shard.answer()
    shard.feed(Upload(part, True))
    shard.run(60)
    assert shard.round.attempt == 0
    shard.feed(happening(shard, part))
    shard.feed(Tick())
    assert shard.round.attempt == 1
    shard.feed(Upload(part, False))
    assert shard.round.attempt == 1

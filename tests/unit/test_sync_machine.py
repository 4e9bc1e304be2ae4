"""The state machine in simulated time: units come, die, are replaced; messages are lost and doubled."""

from __future__ import annotations

import heapq
import json
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll_runtime.sync.events import (
    Effect,
    Event,
    Evict,
    FinalCut,
    Finish,
    Joined,
    Left,
    Merge,
    Merged,
    Part,
    Persist,
    Persisted,
    Publish,
    Release,
    Remember,
    Reported,
    RoundId,
    SendPull,
    StopAll,
    Tick,
    Wake,
)
from atoll_runtime.sync.rounds import Syncer
from atoll_runtime.sync.rules import Rules
from atoll_runtime.sync.waiting import why

P = 4
RULES = Rules(
    fragments=P,
    interval=8,
    overlap=2,
    quorum=1,
    grace_fraction=0.8,
    grace_steps=1.0,
    target_steps=60,
    target_tokens=None,
)


@dataclass
class Learner:
    """A unit of `hosts` hosts that makes a step each `pace` seconds."""

    name: str
    pace: float
    hosts: int = 1
    incarnation: int = 0
    alive: bool = False
    steps: int = 0
    cursor: int = 0
    versions: list[int] = field(default_factory=lambda: [0] * P)
    since: list[int] = field(default_factory=lambda: [0] * P)
    pulls: dict[int, tuple[RoundId, int]] = field(default_factory=dict)


class World:
    """Simulated time around one machine; every invariant is checked as things happen."""

    def __init__(self, rules: Rules, seed: int, loss: float = 0.0) -> None:
        self.rules, self.random, self.loss = rules, random.Random(seed), loss
        self.machine = Syncer(rules, (10,) * P, [0] * P)
        self.now, self.count = 0.0, 0
        self.queue: list[tuple[float, int, Any]] = []
        self.learners: dict[str, Learner] = {}
        self.wake: float | None = None
        self.held: set[tuple[RoundId, str]] = set()
        self.durable: dict[str, Any] = {}
        self.merges: list[Merge] = []
        self.fates: dict[tuple[str, int, int], list[int]] = defaultdict(list)
        self.stopped = False

    def at(self, seconds: float, job: Any) -> None:
        self.count += 1
        heapq.heappush(self.queue, (self.now + seconds, self.count, job))

    def run(self, until: float) -> None:
        while self.queue and self.queue[0][0] <= until and not self.stopped:
            self.now, _, job = heapq.heappop(self.queue)
            job()
        if not self.stopped:
            self.now = until

    def feed(self, event: Event) -> None:
        for effect in self.machine.handle(event, self.now):
            self.carry_out(effect)

    def carry_out(self, effect: Effect) -> None:
        match effect:
            case SendPull(round_id, unit, least):
                if self.random.random() >= self.loss:
                    learner, p = self.learners[unit], round_id.fragment
                    learner.pulls[p] = round_id, least
                    if learner.versions[p] < least:  # an announcement was missed
                        self.receive(learner, learner.incarnation, p, self.machine.versions[p])
            case Merge(round_id):
                self.check(effect)
                self.at(0.01, lambda: self.feed(Merged(round_id, self.now)))
            case Persist(round_id, record):
                self.durable = json.loads(json.dumps(record))
                self.at(0.01, lambda: self.feed(Persisted(round_id)))
            case Remember(record):
                self.durable = json.loads(json.dumps(record))
            case Publish(p, version):
                for learner in self.learners.values():
                    if self.random.random() >= self.loss:
                        delay = self.random.uniform(0.0, 2.0)
                        incarnation = learner.incarnation
                        self.at(delay, lambda x=learner, i=incarnation: self.receive(x, i, p, version))
            case Release(round_id, unit):
                self.held = {h for h in self.held if h[0] != round_id or unit not in (None, h[1])}
            case Evict(unit, newest):
                assert self.learners[unit].incarnation == newest
            case Wake(at):
                assert at >= self.now
                self.wake = at
                self.at(at - self.now, lambda: self.tick(at))
            case Finish(step):
                assert not self.machine.rounds
                self.at(0.1, lambda: self.feed(FinalCut(f"file:///cut/{step}")))
            case StopAll():
                self.stopped = True

    def tick(self, at: float) -> None:
        if self.wake == at:
            self.wake = None
            self.feed(Tick())

    def check(self, merge: Merge) -> None:
        """Nobody stale, nobody twice, sorted, enough, no fragment in two rounds."""
        names = [member.unit for member in merge.members]
        assert names == sorted(set(names)) and len(names) >= self.rules.quorum
        assert len(self.machine.rounds) <= self.rules.overlap
        fragments = [round_id.fragment for round_id in self.machine.rounds]
        assert len(set(fragments)) == len(fragments)
        for member in merge.members:
            assert member.incarnation == self.learners[member.unit].incarnation
            assert member.weight == member.tokens**2 / member.steps
            self.fates[member.unit, member.incarnation, merge.round.fragment].append(member.anchor)
        self.merges.append(merge)

    def receive(self, learner: Learner, incarnation: int, p: int, version: int) -> None:
        if learner.alive and learner.incarnation == incarnation and version > learner.versions[p]:
            learner.versions[p], learner.since[p] = version, 0

    def join(self, learner: Learner) -> None:
        self.learners[learner.name] = learner
        learner.incarnation += 1
        learner.alive, learner.steps, learner.pulls = True, 0, {}
        learner.versions, learner.since = list(self.machine.versions), [0] * P
        for host in range(learner.hosts):
            self.feed(Joined(learner.name, learner.incarnation, host, learner.hosts, 0, ""))
        incarnation = learner.incarnation
        self.at(learner.pace, lambda: self.step(learner, incarnation))

    def die(self, learner: Learner) -> None:
        learner.alive = False
        for host in range(learner.hosts):
            self.feed(Left(learner.name, learner.incarnation, host))

    def step(self, learner: Learner, incarnation: int) -> None:
        if not learner.alive or learner.incarnation != incarnation:
            return
        self.at(learner.pace, lambda: self.step(learner, incarnation))
        learner.steps += 1
        learner.cursor += 1
        learner.since = [count + 1 for count in learner.since]
        self.feed(
            Reported(
                learner.name,
                incarnation,
                0,
                learner.cursor,
                learner.steps,
                learner.steps * 10,
                1.0,
                learner.pace,
                learner.cursor,
            )
        )
        for p, (round_id, least) in list(learner.pulls.items()):
            if learner.versions[p] < least:
                continue
            del learner.pulls[p]
            self.contribute(learner, round_id)

    def contribute(self, learner: Learner, round_id: RoundId) -> None:
        p, share = round_id.fragment, 12 // learner.hosts
        for host in range(learner.hosts):
            part = Part(
                learner.name,
                learner.incarnation,
                host,
                learner.hosts,
                round_id,
                learner.versions[p],
                learner.since[p],
                learner.since[p] * 10,
                learner.cursor,
                learner.cursor,
                host * share,
                (host + 1) * share,
                12,
            )
            for _ in range(self.random.choice([1, 1, 2])):  # now and then a message comes twice
                if self.random.random() >= self.loss:
                    delay = self.random.uniform(0.0, 1.5) * learner.pace
                    self.at(delay, lambda part=part: self.push(part))

    def push(self, part: Part) -> None:
        if not self.machine.admit(part):
            self.held.add((part.round, part.unit))
        self.feed(part)


def world(rules: Rules = RULES, seed: int = 0, loss: float = 0.0, **paces: float) -> World:
    made = World(rules, seed, loss)
    for name, pace in paces.items():
        made.join(Learner(name, pace))
    return made


def test_units_of_like_pace_reach_the_target_at_the_real_interval() -> None:
    w = world(a=1.0, b=1.1)
    w.run(300)
    assert w.stopped and w.machine.step == 60
    assert w.machine.final == "file:///cut/60"
    assert w.machine.merges == 60 * P // 8
    assert w.machine.interval.value == pytest.approx(8, rel=0.2)
    assert sum(len(m.members) == 2 for m in w.merges) > 0.8 * len(w.merges)
    assert not w.held


def test_the_clock_keeps_the_pace_of_the_slowest() -> None:
    w = world(replace(RULES, target_steps=500), a=0.1, b=2.0)
    w.run(10)
    step = w.machine.step
    w.run(70)
    assert 25 <= w.machine.step - step <= 31


def test_without_a_live_unit_the_clock_stands_still_and_says_why() -> None:
    w = world(a=1.0)
    assert "a: has not made two steps yet" in why(w.machine, 0.0)
    w.run(20)
    step = w.machine.step
    w.die(w.learners["a"])
    w.run(500)
    assert w.machine.step - step <= 1
    assert "no live unit left" in why(w.machine, w.now) or "0 live units, K=1" in why(w.machine, w.now)
    w.join(w.learners["a"])
    w.run(520)
    assert w.machine.step > step + 3


def test_a_round_below_quorum_is_discarded_whole_and_tried_again() -> None:
    rules = replace(RULES, quorum=2)
    w = world(rules, a=1.0, b=1.0)
    w.run(10)
    w.loss = 1.0  # nothing arrives any more
    w.run(100)
    attempts = [round_id.attempt for round_id in w.machine.rounds]
    assert max(attempts) >= 1
    w.loss = 0.0
    w.run(600)
    assert w.stopped and not w.held


def test_a_unit_that_dies_does_not_block_and_its_successor_goes_on_from_what_was_merged() -> None:
    w = world(a=1.0, b=1.0)
    w.run(25)
    dead = w.learners["b"]
    before = len(w.merges)
    w.die(dead)
    w.run(35)
    assert len(w.merges) - before >= 4
    assert all(m.unit == "a" for merge in w.merges[before + 2 :] for m in merge.members)
    unit = w.machine.units["b"]
    assert 0 < unit.merged_cursor <= dead.cursor and unit.past_tokens == 0
    w.join(dead)
    assert unit.past_tokens == unit.past_steps * 10 > 0 and unit.contributions == 0
    w.run(60)
    assert unit.contributions > 0 and unit.first_merge_time is not None


def test_hosts_that_disagree_are_dropped_and_counted() -> None:
    w = World(RULES, 0)
    w.join(Learner("a", 1.0, hosts=2))
    while not w.machine.rounds:
        w.run(w.now + 0.5)
    round_id = next(iter(w.machine.rounds))
    part = Part("a", 1, 0, 2, round_id, 0, 3, 30, 3, 3, 0, 6, 12)
    w.machine.handle(part, w.now)
    effects = w.machine.handle(replace(part, host=1, start=6, stop=12, steps=4), w.now)
    assert Release(round_id, "a") in effects
    assert w.machine.units["a"].dropped == 1 and not any(isinstance(e, Merge) for e in effects)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"incarnation": 9}, "not the current one"),
        ({"round": RoundId(99, 0, 0)}, "is over"),
        ({"anchor": 5}, "not a known version"),
        ({"steps": 0}, "weigh nothing"),
        ({"host": 1}, "does not exist"),
        ({"start": 8, "stop": 20}, "does not lie in a fragment"),
        ({"padded": 6, "stop": 6}, "10 elements are wanted"),
    ],
)
def test_a_part_that_does_not_count_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    w = world(a=1.0)
    while not w.machine.rounds:
        w.run(w.now + 0.5)
    part = Part("a", 1, 0, 1, next(iter(w.machine.rounds)), 0, 3, 30, 3, 3, 0, 12, 12)
    assert w.machine.admit(part) == ""
    assert reason in w.machine.admit(replace(part, **change))


def test_a_restored_machine_goes_on_where_the_record_was_made() -> None:
    w = world(a=1.0, b=1.0)
    w.run(30)
    again = Syncer.restore(RULES, (10,) * P, w.durable)
    assert again.step <= w.machine.step and again.merges == w.durable["merges"] > 0
    assert again.versions == w.durable["versions"]
    assert again.units["a"].spent == {int(p): a for p, a in w.durable["units"]["a"]["spent"]}
    assert not again.live(w.now)
    assert json.loads(json.dumps(again.record())) == w.durable


def test_a_target_in_tokens_ends_the_run() -> None:
    w = world(replace(RULES, target_steps=None, target_tokens=200), a=1.0)
    w.run(200)
    assert w.stopped and w.machine.tokens >= 200


happenings = st.lists(
    st.tuples(st.floats(0.5, 15.0), st.sampled_from(["a", "b", "c"]), st.sampled_from(["die", "join"])),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(happenings, st.integers(0, 10_000), st.sampled_from([0.0, 0.1, 0.3]), st.integers(1, 2))
def test_whatever_happens_no_round_is_stale_none_blocks_and_each_token_has_one_fate(
    story: list[tuple[float, str, str]], seed: int, loss: float, minimum: int
) -> None:
    w = World(replace(RULES, quorum=minimum), seed, loss)
    learners = {"a": Learner("a", 1.0), "b": Learner("b", 1.3, hosts=2), "c": Learner("c", 0.7)}
    for learner in learners.values():
        w.join(learner)
    for delay, name, what in story:
        w.run(w.now + delay)
        if w.stopped:
            break
        if learners[name].alive:
            w.die(learners[name])
        if what == "join":
            w.join(learners[name])
    for learner in learners.values():
        if not learner.alive and not w.stopped:
            w.join(learner)
    w.loss = 0.0
    w.run(w.now + 3000)
    assert w.stopped, why(w.machine, w.now)
    assert not w.held
    for anchors in w.fates.values():  # the work since a version is merged once at most
        assert anchors == sorted(set(anchors))
    merged = sum(member.tokens for merge in w.merges for member in merge.members)
    assert merged == sum(unit.merged_tokens for unit in w.machine.units.values())

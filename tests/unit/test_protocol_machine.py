"""The protocol by behaviours: small worlds in simulated time around the real state machines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from lone_shard import LONE, Story, joined, reported
from sim_network import NOTICE_SECONDS
from sim_scenario import Island, Scenario, Weather
from sim_shard import ShardProcess
from sim_unit import SEQUENCES, UnitProcess
from sim_values import Value
from sim_world import World

from atoll_runtime.protocol import restoring
from atoll_runtime.protocol.effects import Effect, Note, Release, SendPull
from atoll_runtime.protocol.events import Received, Said
from atoll_runtime.protocol.identifiers import NO_CUT, RoundId
from atoll_runtime.protocol.linkmeter import LinkReading, LinkUse
from atoll_runtime.protocol.machine import Syncer
from atoll_runtime.protocol.messages import Part, Report
from atoll_runtime.protocol.rules import Rules
from atoll_runtime.protocol.shardview import ShardView
from atoll_runtime.protocol.waiting import why

P, H = 4, 8
RULES = replace(
    LONE, fragments=P, interval=H, overlap=2, grace_fraction=0.8, target_steps=60, cut_interval=1000
)


def world(rules: Rules = RULES, *paces: float, hosts: int = 1, seed: int = 0) -> World:
    """Units u0, u1 … with these paces and ten tokens a step, on a calm network, before their first step."""
    islands = tuple(Island(f"u{i}", hosts, pace, 10) for i, pace in enumerate(paces or (1.0,)))
    sizes = ((10,) * rules.fragments,) * rules.shards
    w = World(Scenario(seed, rules, sizes, islands, Weather(0.01), ()))
    until(w, lambda: all(unit.processes and unit.processes[0].begun for unit in w.units))
    return w


def until(w: World, condition: Callable[[], Any], seconds: float = 600.0) -> None:
    """Runs until `condition` holds. Fails after `seconds` of simulated time."""
    deadline = w.now + seconds
    w.run_while(lambda: w.now < deadline and not condition())
    assert condition(), w.checks.why()


def start(w: World, number: int = 0) -> None:
    """Starts a shard. Returns when it serves."""
    w.shards[number].start()
    until(w, lambda: shard(w, number).service)


def shard(w: World, number: int = 0) -> ShardProcess:
    process = w.shards[number].process
    assert process is not None
    return process


def newest(w: World, number: int) -> UnitProcess:
    return w.units[number].processes[-1]


def merges(w: World) -> list[Value]:
    """Every merge that shard 0 holds, in order."""
    found = []
    for last in shard(w).memory:
        value: Value | None = last
        while value is not None and value.members:
            found.append(value)
            value = value.parent
    return sorted(found, key=lambda each: each.version)


def test_without_a_live_unit_the_clock_stands_still_and_says_why() -> None:
    w = world()
    assert "u0: has not made two steps yet" in why(shard(w).machine, w.now)
    w.run_for(20)
    step = shard(w).machine.step
    w.units[0].kill()
    w.run_for(500)
    assert shard(w).machine.step - step <= 3  # the broken sessions are noticed after two seconds at most
    said = why(shard(w).machine, w.now)
    assert "no live unit left" in said or "0 live units, K=1" in said
    w.units[0].start()
    w.run_for(20)
    assert shard(w).machine.step > step + 3


def test_a_unit_that_dies_does_not_block_and_its_successor_goes_on_from_what_was_merged() -> None:
    w = world(RULES, 1.0, 1.0)
    w.run_for(25)
    trained = newest(w, 1).trained
    before = len(merges(w))
    w.units[1].kill()
    w.run_for(10)
    later = merges(w)[before + 1 :]
    assert len(later) >= 3 and all(member.who[0] == "u0" for value in later for member in value.members)
    unit = shard(w).machine.units["u1"]
    merged = unit.merged_step
    assert 0 < merged <= trained // 10 and unit.account.past == 0
    assert unit.merged_cursor == SEQUENCES * merged
    w.units[1].start()
    until(w, lambda: newest(w, 1).steps == 2)
    assert newest(w, 1).hosts[0].cursor == SEQUENCES * (merged + 3)  # with the step that it makes now
    assert unit.account.past == unit.past_steps * 10 > 0
    assert unit.contributions == 0
    until(w, lambda: unit.step == merged + 2)
    until(w, lambda: unit.contributions > 0)
    assert unit.first_merge_time is not None and unit.account.balanced


@pytest.mark.parametrize("seed", range(2))
def test_shards_of_which_one_was_away_keep_the_learners_pace_once_they_are_level(seed: int) -> None:
    w = world(replace(RULES, shards=2, quorum=2, target_steps=500), 1.0, 1.0, 1.0, seed=seed)
    w.run_for(40)
    w.shards[1].crash()
    w.run_for(20)
    start(w, 1)
    w.run_for(10)
    step = shard(w).machine.step
    w.run_for(60)
    assert shard(w).machine.step - step == pytest.approx(60, abs=2)


def test_a_restored_machine_goes_on_where_the_record_was_made() -> None:
    w = world(RULES, 1.0, 1.0)
    w.run_for(30)
    before = shard(w).machine
    record = w.shards[0].record
    again = restoring.restore(RULES, (10,) * P, record, w.now)
    assert {**again.record(), "units": {}} == {**record, "units": {}}
    assert again.step <= before.step and again.rounds.merges == before.rounds.merges > 0
    assert again.units["u0"].included_in == before.units["u0"].included_in
    assert not again.rounds.live


def collecting(hosts: int = 1) -> tuple[Syncer, RoundId]:
    """A machine with one unit, and the round that collects."""
    story = Story(RULES).tell(*(joined("a", 1, host, hosts) for host in range(hosts)))
    story.steps["a"] = 0
    while not story.machine.rounds.in_flight:
        story.run(1)
    return story.machine, next(iter(story.machine.rounds.in_flight))


def test_a_unit_whose_hosts_always_disagree_is_asked_less_and_less() -> None:
    machine, first = collecting(hosts=2)
    asked, told = [first], list[Effect]()
    for tenth in range(200, 6200):
        now, effects = tenth / 10, list[Effect]()
        for round_id in asked:
            part = Part("a", 1, 0, 2, round_id, 0, 3, 30, 3, 3, 0, 6, 12, 30)
            effects += machine.handle(Received(part, 1.0), now)
            effects += machine.handle(Received(replace(part, host=1, start=6, stop=12, steps=4), 1.0), now)
        effects += machine.handle(Said("a", 1, Report(tenth, tenth, 10 * tenth, 1.0, 1.0)), now)
        asked = [each.round for each in effects if isinstance(each, SendPull)]
        told += effects
    assert Release(first, "a") in told
    attempts = [each.round.attempt for each in told if isinstance(each, SendPull)]
    assert max(attempts) >= 6 and len(attempts) < 50
    assert machine.units["a"].dropped >= len(attempts) and machine.rounds.merges == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"incarnation": 9}, "not the current one"),
        ({"round": RoundId(99, 0, 0)}, "is over"),
        ({"round": RoundId(2, 1, 0, "lost")}, "is over"),
        ({"anchor": 5}, "not a known version"),
        ({"padded": 6, "stop": 6}, "10 elements are wanted"),
    ],
)
def test_a_part_that_does_not_count_is_refused_with_the_reason(change: dict[str, Any], reason: str) -> None:
    machine, round_id = collecting()
    part = Part("a", 1, 0, 1, round_id, 0, 3, 30, 3, 3, 0, 12, 12, 30)
    assert machine.admit(part) == ""
    assert reason in machine.admit(replace(part, **change))


def test_a_fragment_of_a_lost_lineage_is_contributed_only_after_the_new_one_was_taken() -> None:
    link = ShardView([4], lineage="lost")
    link.welcomed("new", [4], [4], NO_CUT)
    link.asked(RoundId(6, 0, 0, "new"), 4)
    link.adopt(0, 4, "lost")  # this version was under way when the journal was lost
    assert not link.answerable() and not link.answered(RoundId(6, 0, 0, "new"))
    fetch_task = link.fetch_task()
    assert fetch_task is not None and link.fetched(fetch_task, 4, NO_CUT)
    link.asked(RoundId(6, 0, 1, "new"), 4)
    assert not link.answerable()  # fetched, but not adopted yet
    link.adopt(0, 4, "new")
    assert link.answerable() and link.answered(RoundId(6, 0, 1, "new"))


def test_hosts_with_different_versions_fetch_these_alone_unless_the_shard_is_not_known_to_have_them() -> None:
    link = ShardView([0, 0, 0])
    link.welcomed("one", [8, 8, 8], [8, 8, 8], NO_CUT, "life")
    link.contest({2: 8})
    fetch_task = link.fetch_task()
    assert fetch_task is not None and (fetch_task.fragment, fetch_task.newest) == (2, 8)
    assert link.fetch_task((2,)) is None, "the others begin together with the other hosts"
    assert link.fetched(fetch_task, 8, NO_CUT, "life")
    link.contest({2: 100})
    fetch_task = link.fetch_task()
    assert fetch_task is not None and fetch_task.fragment == 0, (
        "another host has 100 from a history that ended"
    )


def test_what_was_fetched_before_a_shard_came_back_without_it_is_not_taken_for_what_it_has_now() -> None:
    link = ShardView([24], lineage="one")
    link.need(0, 48)  # another host of the unit has it
    assert link.fetch_task() is None, "no fetch begins without a session"
    assert not link.welcomed("one", [24], [24], NO_CUT, "first life")
    link.announced(0, 48, 48)
    fetch_task = link.fetch_task()
    assert fetch_task is not None
    assert not link.welcomed("one", [24], [48], NO_CUT, "first life"), "it was said before 48 was durable"
    assert link.fetched(fetch_task, 48, NO_CUT, "first life")
    assert link.welcomed("one", [24], [24], NO_CUT, "second life")
    assert link.fetch_task() is None, "the anchor, 24, is what the shard has"
    assert not link.fetched(fetch_task, 48, NO_CUT, "first life"), "it was under way when the shard came back"
    link.adopt(0, 48, "one")  # the unit's hosts had already agreed on it
    link.asked(RoundId(48, 0, 0, "one"), 24)
    assert not link.answerable()
    fetch_task = link.fetch_task()
    assert fetch_task is not None and link.fetched(fetch_task, 24, NO_CUT, "second life")
    link.adopt(0, 24, "one")
    assert link.answerable()


def test_a_version_that_was_promised_and_lost_is_not_waited_for() -> None:
    link = ShardView([24], lineage="one")
    link.announced(0, 48, 48)
    assert link.welcomed("one", [24], [24], NO_CUT, "second life")
    link.asked(RoundId(48, 0, 0, "one"), 24)
    assert link.fetch_task() is None and set(link.answerable()) == {0}


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("back", [1, 2, 6])
def test_a_run_goes_on_when_a_shards_volume_is_restored_as_it_was_some_merges_ago(
    back: int, hosts: int
) -> None:
    w = world(RULES, 1.0, 1.1, hosts=hosts)
    until(w, lambda: shard(w).machine.rounds.merges >= 6)
    snapshot, before = w.shards[0].disk.snapshot(), shard(w).machine.rounds.merges
    until(w, lambda: shard(w).machine.rounds.merges >= before + back)
    w.run_for(1.5)  # the learners have taken it
    w.shards[0].restore_volume(snapshot)
    w.run_for(NOTICE_SECONDS)  # a unit that comes back after as many merges of the others cannot be detected
    start(w)
    until(w, lambda: w.finished)
    w.checks.ended()


def test_a_fragment_without_elements_is_never_fetched_whatever_its_shard_says() -> None:
    link = ShardView([4, 0], lineage="lost", empty=frozenset({1}))
    link.welcomed("new", [4, 0], [4, 0], NO_CUT)
    link.announced(1, 9, 9)
    assert set(link.wanted) == {0}


def test_a_change_of_what_a_unit_uses_its_link_for_is_noted_with_its_reason() -> None:
    story = Story(units="a")
    story.step("a")
    use = LinkUse("int8", 2, 1024, 1.0, 0.6, "bf16 would take 1.2 of an interval", fetch="bf16")
    changed = Report(2, 2, 20, 1.0, 1.0, link=LinkReading(use=use))
    story.tell(Said("a", 1, changed), reported("a", 3))
    noted = [note.entry for note in story.asked(Note) if note.entry["event"] == "communication"]
    assert noted == [
        {"event": "communication", "t": 0, "unit": "a", "codec": "int8", "fetch": "bf16", "streams": 2,
         "chunk_kib": 1024, "period": 1.0, "reason": use.reason}
    ]  # fmt: skip
